// SPDX-License-Identifier: Apache-2.0
// Ir: a backend of the CPU's kernels (kernels.h) that writes LLVM IR. Values are names of the text; what a kernel
// computes once per call of the C++ function is written once. No pass follows (jit/cpu/llvm.h), so the text is what is
// to run: values that a loop carries are its phis, and what does not change is outside of it.
//
// NativeV3 and NativeV4 have the same operations and give the same bits.
#pragma once

#include <fmt/format.h>
#include <tilewright/arch.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "templates/backends/cpu/panel_codes.h"

// Text is written by calls: inlined, they would be most of the library's code for CPUs.
#define TW_ONCE __attribute__((noinline))

namespace tilewright::cpu {

class Ir {
 public:
  explicit Ir(const CpuTarget& target)
      : lanes_(target.vector_bytes / 4),
        dot4_(target.dot4),
        signed_codes_(target.signed_dot4),
        arm_(std::string_view(target.triple).starts_with("aarch64")) {}

  template <int>
  struct Value {
    std::string name;
  };
  using Ptr = Value<0>;
  using I64 = Value<1>;
  using F32 = Value<2>;
  using Bytes = Value<3>;   // 4 * lanes() of 8 bits
  using Words = Value<4>;   // 2 * lanes() of 16 bits
  using Ints = Value<5>;    // lanes() of 32 bits
  using Floats = Value<6>;  // lanes()

  int lanes() const { return lanes_; }
  bool dot4() const { return dot4_; }
  bool signed_codes() const { return signed_codes_; }  // dot4() takes signed codes only

  // ---- functions
  struct Arguments {
    Ptr args, constants, scratch;
    I64 block;
  };
  template <class Body>
  void function(const std::string& name, Body body) {
    text_ += fmt::format("define void @{}(ptr %args, ptr %constants, ptr %scratch, i64 %block) #0 {{\nentry:\n", name);
    block_ = "entry";
    body(Arguments{{"%args"}, {"%constants"}, {"%scratch"}, {"%block"}});
    text_ += "  ret void\n}\n";
  }
  std::string text() const { return text_ + declarations_ + "attributes #0 = { nounwind }\n"; }

  // ---- integers and addresses
  TW_ONCE I64 constant(std::int64_t v) { return {std::to_string(v)}; }
  TW_ONCE I64 add(const I64& a, const I64& b) { return value<I64>("add i64 {}, {}", a.name, b.name); }
  TW_ONCE I64 mul(const I64& a, const I64& b) { return value<I64>("mul i64 {}, {}", a.name, b.name); }
  TW_ONCE I64 sub(const I64& a, const I64& b) { return value<I64>("sub i64 {}, {}", a.name, b.name); }
  TW_ONCE I64 div(const I64& a, const I64& b) { return value<I64>("udiv i64 {}, {}", a.name, b.name); }
  TW_ONCE I64 min(const I64& a, const I64& b) {
    const auto is = temporary("icmp slt i64 {}, {}", a.name, b.name);
    return value<I64>("select i1 {}, i64 {}, i64 {}", is, a.name, b.name);
  }
  TW_ONCE Ptr at(const Ptr& p, const I64& bytes) {
    return value<Ptr>("getelementptr i8, ptr {}, i64 {}", p.name, bytes.name);
  }
  TW_ONCE Ptr at(const Ptr& p, std::int64_t bytes) { return bytes == 0 ? p : at(p, constant(bytes)); }
  TW_ONCE Ptr stack(std::int64_t bytes) { return value<Ptr>("alloca [{} x i8], align 64", bytes); }

  // ---- memory
  TW_ONCE Ptr load_ptr(const Ptr& p) { return value<Ptr>("load ptr, ptr {}, align 8", p.name); }
  TW_ONCE I64 load_i64(const Ptr& p) { return value<I64>("load i64, ptr {}, align 8", p.name); }
  TW_ONCE I64 load_i32(const Ptr& p) {
    return value<I64>("sext i32 {} to i64", temporary("load i32, ptr {}, align 4", p.name));
  }
  TW_ONCE void store_i64(const Ptr& p, const I64& v) { line("store i64 {}, ptr {}, align 8", v.name, p.name); }
  TW_ONCE void copy(const Ptr& to, const Ptr& from, int bytes) {  // 1, 2 or 4
    line("store i{} {}, ptr {}, align {}", 8 * bytes,
         temporary("load i{}, ptr {}, align {}", 8 * bytes, from.name, bytes), to.name, bytes);
  }
  TW_ONCE F32 load_f32(const Ptr& p) { return value<F32>("load float, ptr {}, align 4", p.name); }
  TW_ONCE Bytes load_bytes(const Ptr& p) {
    return value<Bytes>("load <{} x i8>, ptr {}, align 16", 4 * lanes_, p.name);
  }
  TW_ONCE void store_bytes(const Ptr& p, const Bytes& v) {
    line("store <{} x i8> {}, ptr {}, align 16", 4 * lanes_, v.name, p.name);
  }
  TW_ONCE Floats load_floats(const Ptr& p) {
    return value<Floats>("load <{} x float>, ptr {}, align 4", lanes_, p.name);
  }
  TW_ONCE void store_floats(const Ptr& p, const Floats& v) {
    line("store <{} x float> {}, ptr {}, align 4", lanes_, v.name, p.name);
  }
  TW_ONCE Floats load_halves(const Ptr& p) {
    const auto half = temporary("load <{} x half>, ptr {}, align 2", lanes_, p.name);
    return value<Floats>("fpext <{0} x half> {1} to <{0} x float>", lanes_, half);
  }
  TW_ONCE Floats load_bf16s(const Ptr& p) {
    const auto wide = temporary("zext <{0} x i16> {1} to <{0} x i32>", lanes_,
                                temporary("load <{} x i16>, ptr {}, align 2", lanes_, p.name));
    return value<Floats>("bitcast <{0} x i32> {1} to <{0} x float>", lanes_, shifted(Ints{wide}, 16).name);
  }
  TW_ONCE void store_halves(const Ptr& p, const Floats& v) {
    const auto half = temporary("fptrunc <{0} x float> {1} to <{0} x half>", lanes_, v.name);
    line("store <{} x half> {}, ptr {}, align 2", lanes_, half, p.name);
  }
  TW_ONCE Ints bf16s(const Floats& v) {  // nearest, ties to even; a NaN stays one
    const auto ones = [&](const char* number) { return constant_vector("i32", lanes_, number); };
    const auto bits = temporary("bitcast <{0} x float> {1} to <{0} x i32>", lanes_, v.name);
    const auto upper = temporary("lshr <{} x i32> {}, {}", lanes_, bits, ones("16"));
    const auto odd = temporary("and <{} x i32> {}, {}", lanes_, upper, ones("1"));
    const auto up = temporary("add <{} x i32> {}, {}", lanes_, odd, ones("32767"));
    const auto sum = temporary("add <{} x i32> {}, {}", lanes_, bits, up);
    const auto rounded = temporary("lshr <{} x i32> {}, {}", lanes_, sum, ones("16"));
    const auto quiet = temporary("or <{} x i32> {}, {}", lanes_, upper, ones("64"));
    const auto is_nan = temporary("fcmp uno <{0} x float> {1}, {1}", lanes_, v.name);
    return value<Ints>("select <{0} x i1> {1}, <{0} x i32> {2}, <{0} x i32> {3}", lanes_, is_nan, quiet, rounded);
  }
  TW_ONCE void store_bf16s(const Ptr& p, const Floats& v) {
    const auto words = temporary("trunc <{0} x i32> {1} to <{0} x i16>", lanes_, bf16s(v).name);
    line("store <{} x i16> {}, ptr {}, align 2", lanes_, words, p.name);
  }
  TW_ONCE void store_apart(const Ptr& p, const Floats& v, int step) {  // lane i at p + i * step
    if (step == 4) return store_floats(p, v);
    for (int i = 0; i < lanes_; ++i)
      line("store float {}, ptr {}, align 4", temporary("extractelement <{} x float> {}, i64 {}", lanes_, v.name, i),
           at(p, step * i).name);
  }
  TW_ONCE Floats splat_bf16(const Ptr& p) {
    const auto wide = temporary("zext i16 {} to i32", temporary("load i16, ptr {}, align 2", p.name));
    return splat_floats(temporary("bitcast i32 {} to float", temporary("shl i32 {}, 16", wide)));
  }
  TW_ONCE Floats splat_half(const Ptr& p) {
    return splat_floats(temporary("fpext half {} to float", temporary("load half, ptr {}, align 2", p.name)));
  }
  TW_ONCE Ints load_codes(const Ptr& p) {  // lanes() signed bytes
    const auto bytes = temporary("load <{} x i8>, ptr {}, align 1", lanes_, p.name);
    return value<Ints>("sext <{0} x i8> {1} to <{0} x i32>", lanes_, bytes);
  }
  TW_ONCE Ints splat_code(const Ptr& p) {  // a signed byte
    return {splat("i32", temporary("sext i8 {} to i32", temporary("load i8, ptr {}, align 1", p.name)))};
  }
  TW_ONCE void store_codes(const Ptr& p, const Ints& v) {
    const auto bytes = temporary("trunc <{0} x i32> {1} to <{0} x i8>", lanes_, v.name);
    line("store <{} x i8> {}, ptr {}, align 1", lanes_, bytes, p.name);
  }
  // The first lane.
  TW_ONCE void store_first(const Ptr& p, const Ints& v) {
    line("store i32 {}, ptr {}, align 4", temporary("extractelement <{} x i32> {}, i64 0", lanes_, v.name), p.name);
  }
  TW_ONCE void store_first(const Ptr& p, const Floats& v) {
    line("store float {}, ptr {}, align 4", temporary("extractelement <{} x float> {}, i64 0", lanes_, v.name), p.name);
  }
  TW_ONCE Bytes splat_bytes(const Ptr& p) {  // four of them in every lane
    const auto ints = splat("i32", temporary("load i32, ptr {}, align 4", p.name));
    return value<Bytes>("bitcast <{} x i32> {} to <{} x i8>", lanes_, ints, 4 * lanes_);
  }
  TW_ONCE Ints splat_ints(const Ptr& p) { return {splat("i32", temporary("load i32, ptr {}, align 4", p.name))}; }
  TW_ONCE Floats splat_floats(const Ptr& p) { return splat(load_f32(p)); }
  TW_ONCE void prefetch(const Ptr& p, bool second = false) {  // to the second cache alone
    declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)");
    line("call void @llvm.prefetch.p0(ptr {}, i32 0, i32 {}, i32 1)", p.name, second ? 2 : 3);
  }

  // ---- codes
  // Bits `from` to from + count - 1 of each, moved to bit `to`.
  TW_ONCE Bytes field(const Bytes& v, int from, int count, int to) {
    std::string name = v.name;
    if (from != to)
      name = temporary("{} <{} x i8> {}, {}", from > to ? "lshr" : "shl", 4 * lanes_, name,
                       constant_vector("i8", 4 * lanes_, std::to_string(from > to ? from - to : to - from)));
    return value<Bytes>("and <{} x i8> {}, {}", 4 * lanes_, name,
                        constant_vector("i8", 4 * lanes_, std::to_string(((1 << count) - 1) << to)));
  }
  TW_ONCE Bytes either(const Bytes& a, const Bytes& b) {
    return value<Bytes>("or <{} x i8> {}, {}", 4 * lanes_, a.name, b.name);
  }
  // What codes of four bits name.
  TW_ONCE Bytes level(const Bytes& v, const PanelLevels& levels) {
    const std::string type = fmt::format("<{} x i8>", 4 * lanes_), call = arm_ ? "@llvm.aarch64.neon.tbl1.v16i8"
                                                                          : lanes_ == 16
                                                                              ? "@llvm.x86.avx512.pshuf.b.512"
                                                                              : "@llvm.x86.avx2.pshuf.b";
    declare(fmt::format("{0} {1}({0}, {0})", type, call));
    std::string table = "<";
    for (int i = 0; i < 4 * lanes_; ++i)
      table += fmt::format("{}i8 {}", i ? ", " : "", static_cast<signed char>(levels.of[i % 16]));
    return value<Bytes>("call {0} {1}({0} {2}>, {0} {3})", type, call, table, v.name);
  }
  // The sums of two neighbouring products of unsigned by signed bytes; of 15 bits and a sign, or saturated.
  TW_ONCE Words pairs(const Bytes& u, const Bytes& s) {
    declare("<16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8>, <32 x i8>)");
    return value<Words>("call <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8> {}, <32 x i8> {})", u.name, s.name);
  }
  TW_ONCE Words add(const Words& a, const Words& b) {
    return value<Words>("add <{} x i16> {}, {}", 2 * lanes_, a.name, b.name);
  }
  TW_ONCE Ints pair_sums(const Words& v) {  // of neighbours
    declare("<8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>)");
    return value<Ints>("call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> {}, <16 x i16> {})", v.name,
                       constant_vector("i16", 16, "1"));
  }
  TW_ONCE Bytes less_offset(const Bytes& v, int offset) {  // of each byte, as a signed one
    return value<Bytes>("sub <{} x i8> {}, {}", 4 * lanes_, v.name,
                        constant_vector("i8", 4 * lanes_, std::to_string(static_cast<signed char>(offset))));
  }
  // sum + the four products of unsigned by signed bytes in each lane.
  TW_ONCE Ints dot4(const Ints& sum, const Bytes& u, const Bytes& s) {
    if (arm_) {
      const std::string call = fmt::format("@llvm.aarch64.neon.{}dot.v4i32.v16i8", signed_codes_ ? "s" : "us");
      declare(fmt::format("<4 x i32> {}(<4 x i32>, <16 x i8>, <16 x i8>)", call));
      return value<Ints>("call <4 x i32> {}(<4 x i32> {}, <16 x i8> {}, <16 x i8> {})", call, sum.name, u.name, s.name);
    }
    const int bits = 32 * lanes_;
    const auto ints = [&](const Bytes& v) {
      return temporary("bitcast <{} x i8> {} to <{} x i32>", 4 * lanes_, v.name, lanes_);
    };
    const std::string type = fmt::format("<{} x i32>", lanes_),
                      call = fmt::format("@llvm.x86.avx512.vpdpbusd.{}", bits);
    declare(fmt::format("{0} {1}({0}, {0}, {0})", type, call));
    const std::string first = ints(u), second = ints(s);
    return value<Ints>("call {0} {1}({0} {2}, {0} {3}, {0} {4})", type, call, sum.name, first, second);
  }

  // ---- tiles (AMX): 16 tokens by 16 rows of sums
  // Makes them ready for products over so many columns. memory: 128 bytes; what was configured is kept there.
  TW_ONCE void begin_tiles(const Ptr& memory, int columns) {
    std::string config = "<";
    for (int i = 0; i < 64; ++i) {
      const int number = i < 16 ? i == 0 : i < 48 ? (i - 16) / 2 : i - 48;  // of a tile
      const bool exists = i >= 16 && number < 8, is_x = number == 4 || number == 5, is_w = number > 5;
      const int byte = i < 16            ? number  // the first palette
                       : !exists         ? 0
                       : i < 48 && i % 2 ? 0
                       : i < 48          ? (is_x ? columns : 64)
                                         : (is_w ? columns / 4 : 16);
      config += fmt::format("{}i8 {}", i ? ", " : "", byte);
    }
    const Ptr own = at(memory, 64);
    line("store <64 x i8> {}>, ptr {}, align 64", config, own.name);
    declare("void @llvm.x86.sttilecfg(ptr)");
    declare("void @llvm.x86.ldtilecfg(ptr)");
    line("call void @llvm.x86.sttilecfg(ptr {})", memory.name);
    line("call void @llvm.x86.ldtilecfg(ptr {})", own.name);
  }
  TW_ONCE void end_tiles(const Ptr& memory) { line("call void @llvm.x86.ldtilecfg(ptr {})", memory.name); }
  // The products of 16 tokens, x_stride bytes apart, with 16 rows of signed codes, four columns of each in 64 bytes:
  // 16 sums for each token. unit: 0 to 3, so that some can be under way.
  TW_ONCE void tile_products(int unit, const Ptr& x, std::int64_t x_stride, const Ptr& w, const Ptr& sums,
                             int /* columns: begin_tiles() has them */) {
    declare("void @llvm.x86.tilezero(i8)");
    declare("void @llvm.x86.tileloadd64(i8, ptr, i64)");
    declare("void @llvm.x86.tilestored64(i8, ptr, i64)");
    declare("void @llvm.x86.tdpbssd(i8, i8, i8)");
    const int x_tile = 4 + unit % 2, w_tile = 6 + unit % 2;
    line("call void @llvm.x86.tilezero(i8 {})", unit);
    line("call void @llvm.x86.tileloadd64(i8 {}, ptr {}, i64 {})", x_tile, x.name, x_stride);
    line("call void @llvm.x86.tileloadd64(i8 {}, ptr {}, i64 64)", w_tile, w.name);
    line("call void @llvm.x86.tdpbssd(i8 {}, i8 {}, i8 {})", unit, x_tile, w_tile);
    line("call void @llvm.x86.tilestored64(i8 {}, ptr {}, i64 64)", unit, sums.name);
  }

  // Tiles by themselves: 0 to 3 of sums, 4 and 5 of x, 6 and 7 of w.
  TW_ONCE void load_tile(int tile, const Ptr& p, std::int64_t stride) {
    declare("void @llvm.x86.tileloadd64(i8, ptr, i64)");
    line("call void @llvm.x86.tileloadd64(i8 {}, ptr {}, i64 {})", tile, p.name, stride);
  }
  TW_ONCE void store_tile(int tile, const Ptr& p, std::int64_t stride) {
    declare("void @llvm.x86.tilestored64(i8, ptr, i64)");
    line("call void @llvm.x86.tilestored64(i8 {}, ptr {}, i64 {})", tile, p.name, stride);
  }
  // Adds products of bf16, pairs of columns of 16 tokens with pairs of columns of 16 rows.
  TW_ONCE void add_bf16_products(int sums, int x, int w) {
    declare("void @llvm.x86.tdpbf16ps(i8, i8, i8)");
    line("call void @llvm.x86.tdpbf16ps(i8 {}, i8 {}, i8 {})", sums, x, w);
  }

  // ---- integers of 32 bits
  TW_ONCE Ints load_ints(const Ptr& p) { return value<Ints>("load <{} x i32>, ptr {}, align 4", lanes_, p.name); }
  TW_ONCE Ints zero_ints() { return {"zeroinitializer"}; }
  TW_ONCE Ints add(const Ints& a, const Ints& b) {
    return value<Ints>("add <{} x i32> {}, {}", lanes_, a.name, b.name);
  }
  TW_ONCE Ints times(const Ints& a, int factor) {
    return value<Ints>("mul <{} x i32> {}, {}", lanes_, a.name, constant_vector("i32", lanes_, std::to_string(factor)));
  }
  TW_ONCE Ints shifted(const Ints& a, int bits) {
    return value<Ints>("shl <{} x i32> {}, {}", lanes_, a.name, constant_vector("i32", lanes_, std::to_string(bits)));
  }
  TW_ONCE Ints every(int v) { return {constant_vector("i32", lanes_, std::to_string(v))}; }
  TW_ONCE Ints right(const Ints& a, int bits) {  // zeros come in
    return value<Ints>("lshr <{} x i32> {}, {}", lanes_, a.name, every(bits).name);
  }
  TW_ONCE Ints both(const Ints& a, const Ints& b) {
    return value<Ints>("and <{} x i32> {}, {}", lanes_, a.name, b.name);
  }
  TW_ONCE Ints ints(const Bytes& v) {  // four of them in every lane
    return value<Ints>("bitcast <{} x i8> {} to <{} x i32>", 4 * lanes_, v.name, lanes_);
  }
  TW_ONCE Ints bits(const Floats& v) { return value<Ints>("bitcast <{0} x float> {1} to <{0} x i32>", lanes_, v.name); }
  TW_ONCE Floats of_bits(const Ints& v) {
    return value<Floats>("bitcast <{0} x i32> {1} to <{0} x float>", lanes_, v.name);
  }
  TW_ONCE Ints sum_of_lanes(Ints v) {  // in every lane
    for (int by = lanes_ / 2; by > 0; by /= 2) v = add(v, Ints{rotated("i32", v.name, by)});
    return v;
  }

  // ---- floats
  TW_ONCE Floats zero_floats() { return {"zeroinitializer"}; }
  TW_ONCE Floats splat(const F32& v) { return {splat("float", v.name)}; }
  TW_ONCE Floats splat(float v) { return {constant_vector("float", lanes_, number(v))}; }
  TW_ONCE F32 mul(const F32& a, const F32& b) { return value<F32>("fmul float {}, {}", a.name, b.name); }
  TW_ONCE Floats add(const Floats& a, const Floats& b) { return binary("fadd", a, b); }
  TW_ONCE Floats mul(const Floats& a, const Floats& b) { return binary("fmul", a, b); }
  TW_ONCE Floats div(const Floats& a, const Floats& b) { return binary("fdiv", a, b); }
  TW_ONCE Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    const std::string type = fmt::format("<{} x float>", lanes_), call = fmt::format("@llvm.fma.v{}f32", lanes_);
    declare(fmt::format("{0} {1}({0}, {0}, {0})", type, call));
    return value<Floats>("call {0} {1}({0} {2}, {0} {3}, {0} {4})", type, call, a.name, b.name, c.name);
  }
  TW_ONCE Floats floats(const Ints& v) {
    return value<Floats>("sitofp <{0} x i32> {1} to <{0} x float>", lanes_, v.name);
  }
  TW_ONCE Ints ints(const Floats& v) { return value<Ints>("fptosi <{0} x float> {1} to <{0} x i32>", lanes_, v.name); }
  TW_ONCE Floats magnitude(const Floats& v) {
    const auto bits = temporary("bitcast <{0} x float> {1} to <{0} x i32>", lanes_, v.name);
    const auto kept = temporary("and <{} x i32> {}, {}", lanes_, bits, constant_vector("i32", lanes_, "2147483647"));
    return value<Floats>("bitcast <{0} x i32> {1} to <{0} x float>", lanes_, kept);
  }
  TW_ONCE Floats with_sign(float size, const Floats& of) {
    const auto bits = temporary("bitcast <{0} x float> {1} to <{0} x i32>", lanes_, of.name);
    const auto sign = temporary("and <{} x i32> {}, {}", lanes_, bits, constant_vector("i32", lanes_, "-2147483648"));
    std::int32_t number = 0;
    __builtin_memcpy(&number, &size, sizeof number);
    const auto both =
        temporary("or <{} x i32> {}, {}", lanes_, sign, constant_vector("i32", lanes_, std::to_string(number)));
    return value<Floats>("bitcast <{0} x i32> {1} to <{0} x float>", lanes_, both);
  }
  TW_ONCE Floats larger(const Floats& a, const Floats& b) {  // a < b ? b : a
    return if_smaller(a, b, b, a);
  }
  TW_ONCE Floats smaller(const Floats& a, const Floats& b) { return if_smaller(b, a, b, a); }  // b < a ? b : a
  TW_ONCE Floats if_smaller(const Floats& a, const Floats& b, const Floats& then, const Floats& otherwise) {
    const auto is = temporary("fcmp olt <{} x float> {}, {}", lanes_, a.name, b.name);
    return value<Floats>("select <{0} x i1> {1}, <{0} x float> {2}, <{0} x float> {3}", lanes_, is, then.name,
                         otherwise.name);
  }
  TW_ONCE Floats nearest(const Floats& v) {  // integer, ties to even
    const std::string type = fmt::format("<{} x float>", lanes_), call = fmt::format("@llvm.roundeven.v{}f32", lanes_);
    declare(fmt::format("{0} {1}({0})", type, call));
    return value<Floats>("call {0} {1}({0} {2})", type, call, v.name);
  }
  TW_ONCE Floats unless_nan(const Floats& v) {  // 0
    const auto is = temporary("fcmp ord <{0} x float> {1}, {1}", lanes_, v.name);
    return value<Floats>("select <{0} x i1> {1}, <{0} x float> {2}, <{0} x float> zeroinitializer", lanes_, is, v.name);
  }
  TW_ONCE Floats largest_of_lanes(Floats v) {  // in every lane
    for (int by = lanes_ / 2; by > 0; by /= 2) v = larger(v, Floats{rotated("float", v.name, by)});
    return v;
  }
  TW_ONCE Floats unless_zero(const Floats& test, const Floats& v) {  // test != 0 ? v : 0
    const auto is = temporary("fcmp une <{} x float> {}, zeroinitializer", lanes_, test.name);
    return value<Floats>("select <{0} x i1> {1}, <{0} x float> {2}, <{0} x float> zeroinitializer", lanes_, is, v.name);
  }
  TW_ONCE Floats through_half(const Floats& v) {
    const auto half = temporary("fptrunc <{0} x float> {1} to <{0} x half>", lanes_, v.name);
    return value<Floats>("fpext <{0} x half> {1} to <{0} x float>", lanes_, half);
  }

  // ---- control
  // body(i) for i from `from` up to `to`, by `step`; `carried` holds what one turn leaves to the next.
  template <class Body>
  void loop(const I64& from, const I64& to, std::int64_t step, std::span<Floats> carried, Body body) {
    const int n = labels_++;
    const std::string before = block_, head = fmt::format("head{}", n), turn = fmt::format("turn{}", n),
                      after = fmt::format("after{}", n), i = fmt::format("%i{}", n);
    line("br label %{}", head);
    text_ += head + ":\n";
    const std::size_t phis = text_.size();
    std::vector<std::string> first;
    for (std::size_t c = 0; c < carried.size(); ++c) {
      first.push_back(carried[c].name);
      carried[c].name = fmt::format("%carried{}_{}", n, c);
    }
    line("%more{} = icmp slt i64 {}, {}", n, i, to.name);
    line("br i1 %more{}, label %{}, label %{}", n, turn, after);
    text_ += turn + ":\n";
    block_ = turn;
    body(I64{i});
    line("%next{} = add i64 {}, {}", n, i, step);
    std::string heads = fmt::format("  {} = phi i64 [ {}, %{} ], [ %next{}, %{} ]\n", i, from.name, before, n, block_);
    for (std::size_t c = 0; c < carried.size(); ++c) {
      heads += fmt::format("  %carried{}_{} = phi <{} x float> [ {}, %{} ], [ {}, %{} ]\n", n, c, lanes_, first[c],
                           before, carried[c].name, block_);
      carried[c].name = fmt::format("%carried{}_{}", n, c);
    }
    line("br label %{}", head);
    text_.insert(phis, heads);
    text_ += after + ":\n";
    block_ = after;
  }
  template <class Body>
  void if_less(const I64& a, const I64& b, Body body) {
    const int n = labels_++;
    line("br i1 {}, label %then{}, label %done{}", temporary("icmp slt i64 {}, {}", a.name, b.name), n, n);
    text_ += fmt::format("then{}:\n", n);
    block_ = fmt::format("then{}", n);
    body();
    line("br label %done{}", n);
    text_ += fmt::format("done{}:\n", n);
    block_ = fmt::format("done{}", n);
  }

 private:
  template <class... A>
  void line(fmt::format_string<A...> format, A&&... a) {
    add_line(format, fmt::make_format_args(a...));
  }
  template <class... A>
  std::string temporary(fmt::format_string<A...> format, A&&... a) {
    return add_value(format, fmt::make_format_args(a...));
  }
  TW_ONCE void add_line(fmt::string_view format, fmt::format_args a) { text_ += "  " + fmt::vformat(format, a) + "\n"; }
  TW_ONCE std::string add_value(fmt::string_view format, fmt::format_args a) {
    std::string name = fmt::format("%v{}", values_++);
    text_ += "  " + name + " = " + fmt::vformat(format, a) + "\n";
    return name;
  }
  template <class V, class... A>
  V value(fmt::format_string<A...> format, A&&... a) {
    return {temporary(format, std::forward<A>(a)...)};
  }
  TW_ONCE Floats binary(const char* op, const Floats& a, const Floats& b) {
    return value<Floats>("{} <{} x float> {}, {}", op, lanes_, a.name, b.name);
  }
  Floats splat_floats(const std::string& scalar) { return {splat("float", scalar)}; }
  TW_ONCE std::string splat(const char* type, const std::string& scalar) {
    const auto one = temporary("insertelement <{0} x {1}> poison, {1} {2}, i64 0", lanes_, type, scalar);
    return temporary("shufflevector <{0} x {1}> {2}, <{0} x {1}> poison, <{0} x i32> zeroinitializer", lanes_, type,
                     one);
  }
  TW_ONCE std::string rotated(const char* type, const std::string& v, int by) {
    std::string order;
    for (int i = 0; i < lanes_; ++i) order += fmt::format("{}i32 {}", i ? ", " : "", (i + by) % lanes_);
    return temporary("shufflevector <{0} x {1}> {2}, <{0} x {1}> poison, <{0} x i32> <{3}>", lanes_, type, v, order);
  }
  TW_ONCE static std::string constant_vector(const char* type, int count, const std::string& v) {
    std::string all = "<";
    for (int i = 0; i < count; ++i) all += fmt::format("{}{} {}", i ? ", " : "", type, v);
    return all + ">";
  }
  TW_ONCE static std::string number(float v) {  // IR writes a float as the double that equals it
    const double wide = v;
    std::uint64_t bits = 0;
    __builtin_memcpy(&bits, &wide, sizeof bits);
    return fmt::format("0x{:016X}", bits);
  }
  TW_ONCE void declare(const std::string& what) {
    const std::string wanted = "declare " + what + "\n";
    if (declarations_.find(wanted) == std::string::npos) declarations_ += wanted;
  }

  const int lanes_;  // of 32 bits
  const bool dot4_, signed_codes_, arm_;
  std::string text_, declarations_, block_;
  int values_ = 0, labels_ = 0;
};

}  // namespace tilewright::cpu

#undef TW_ONCE
