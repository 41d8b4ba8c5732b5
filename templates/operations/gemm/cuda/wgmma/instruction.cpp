// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/gemm/cuda/wgmma/instruction.h"

#include <fmt/format.h>

namespace tilewright::gemm {
namespace {

struct Spelling {
  const char* name;     // in the source
  const char* types;    // of d, a, b
  const char* tail[2];  // after the predicate: both operands in shared memory, a in registers
};

Spelling spelling(tw::WgmmaKind kind) {
  switch (kind) {
    case tw::WgmmaKind::f16: return {"f16", "f32.f16.f16", {", 1, 1, 0, 0", ", 1, 1, 0"}};
    case tw::WgmmaKind::bf16: return {"bf16", "f32.bf16.bf16", {", 1, 1, 0, 0", ", 1, 1, 0"}};
    case tw::WgmmaKind::e4m3: return {"e4m3", "f32.e4m3.e4m3", {", 1, 1", ", 1, 1"}};
    case tw::WgmmaKind::e5m2: return {"e5m2", "f32.e5m2.e5m2", {", 1, 1", ", 1, 1"}};
    case tw::WgmmaKind::e4m3_e5m2: return {"e4m3_e5m2", "f32.e4m3.e5m2", {", 1, 1", ", 1, 1"}};
    case tw::WgmmaKind::e5m2_e4m3: return {"e5m2_e4m3", "f32.e5m2.e4m3", {", 1, 1", ", 1, 1"}};
    case tw::WgmmaKind::tf32: return {"tf32", "f32.tf32.tf32", {", 1, 1", ", 1, 1"}};
    case tw::WgmmaKind::b1: return {"b1", "s32.b1.b1.and.popc", {"", ""}};
    case tw::WgmmaKind::s8: break;
  }
  return {"s8", "s32.s8.s8", {"", ""}};
}

}  // namespace

bool wgmma_legal(tw::WgmmaKind kind, int n) {
  return n >= 8 && n <= 256 && n % 8 == 0 && (!tw::is_integer(kind) || n <= 32 || n % 16 == 0);
}

std::string wgmma_text(tw::WgmmaKind kind, int n) {
  const Spelling s = spelling(kind);
  const int sums = n / 2;
  const bool integer = tw::is_integer(kind);
  std::string registers, outputs;
  for (int i = 0; i < sums; ++i) {
    registers += fmt::format("{}%{}", i ? ", " : "", i);
    outputs += fmt::format("{}\"+{}\"(d[{}])", i ? ", " : "", integer ? "r" : "f", i);
  }
  std::string text = fmt::format("namespace tw {{\ntemplate <> struct Wgmma<WgmmaKind::{}, {}> {{\n  using D = {};\n",
                                 s.name, n, integer ? "i32" : "float");
  for (int in_registers : {0, 1}) {
    const int a = sums, b = a + (in_registers ? 4 : 1);
    const std::string a_text =
        in_registers ? fmt::format("{{%{}, %{}, %{}, %{}}}", a, a + 1, a + 2, a + 3) : std::string("da");
    text += fmt::format(
        "  TW_MEMBER static void {}(D (&d)[{}], {}, u32 b, bool accumulate) {{\n"
        "    asm volatile(\"{{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %{}, 0; mov.b64 db, {{%{}, {}}};{}\\n\"\n"
        "                 \"wgmma.mma_async.sync.aligned.m64n{}k{}.{} {{{}}}, {}, db, p{}; }}\"\n"
        "                 : {} : {}, \"r\"(b), \"r\"(static_cast<i32>(accumulate)));\n  }}\n",
        in_registers ? "rs" : "ss", sums, in_registers ? "const u32 (&a)[4]" : "u32 a", b + 1, b, tw::kDescriptorHigh,
        in_registers ? std::string() : fmt::format(" mov.b64 da, {{%{}, {}}};", a, tw::kDescriptorHigh), n,
        tw::mma_k(kind), s.types, registers, a_text, s.tail[in_registers], outputs,
        in_registers ? "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])" : "\"r\"(a)");
  }
  return text + "};\n}  // namespace tw\n";
}

}  // namespace tilewright::gemm
