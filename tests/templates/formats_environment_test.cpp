// SPDX-License-Identifier: Apache-2.0
// Codecs in a process with another floating-point environment: flushed subnormals (as -ffast-math sets at start) and
// other rounding modes. The bytes are the same, and the caller's environment is there again afterwards.
#include <tilewright/error.h>
#include <tilewright/import.h>
#include <tilewright/pack.h>
#include <tilewright/problem.h>

#include <cfenv>
#include <cstring>
#include <vector>

#include "formats_test.h"
#include "golden.h"
#include "import_test.h"
#include "support/catch.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace formats_test;

namespace {

// Subnormals flushed, results and operands, where the processor can; and a rounding mode.
class Environment {
 public:
  explicit Environment(int rounding) : rounding_(std::fegetround()) {
#if defined(__x86_64__)
    word_ = _mm_getcsr();
    std::fesetround(rounding);
    _mm_setcsr(_mm_getcsr() | 0x8040u);  // FTZ, DAZ
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(word_));
    std::fesetround(rounding);
    unsigned long mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    asm volatile("msr fpcr, %0" : : "r"(mode | 1ul << 24));  // FZ
#else
    std::fesetround(rounding);
#endif
    now_ = word();
  }
  ~Environment() {
    std::fesetround(rounding_);
#if defined(__x86_64__)
    _mm_setcsr(word_);
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(word_));
#endif
  }
  bool kept() const { return word() == now_; }  // since the constructor; exceptions that were raised do not count

 private:
  static unsigned long word() {
#if defined(__x86_64__)
    return _mm_getcsr() & ~0x3fu;
#elif defined(__aarch64__)
    unsigned long word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
#else
    return static_cast<unsigned long>(std::fegetround());
#endif
  }
  int rounding_;
#if defined(__aarch64__)
  unsigned long word_ = 0;
#else
  unsigned word_ = 0;
#endif
  unsigned long now_ = 0;
};

// False if the environment was changed; if it is always true, this file tests nothing.
bool is_exact() {
  volatile float subnormal = 1e-41f, tiny = 1.0f, third = 3.0f;
  const bool kept = subnormal * tiny != 0.0f;
  const volatile float up = 1.0f / third;
  return kept && up == 0x1.555556p-2f;
}

struct Result {
  Encoded encoded;
  std::vector<float> decoded;
  float global;
};
Result codec(const GoldenFile& file, const Golden& g) {
  const Format f = Format::parse(file.format);
  Result r;
  r.global = f.info().global_for ? f.info().global_for(largest(g.input)) : 1.0f;
  r.encoded = encode(f, g.input, g.cols, static_cast<int>(file.encoder), r.global);
  r.decoded = decode(f, r.encoded, g.input.size(), g.cols);
  return r;
}
bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("codecs give the golden bytes whatever the process does to floats", "[formats][golden]") {
  REQUIRE(is_exact());
  std::size_t subnormal = 0;
  for (const GoldenFile& file : golden_files()) {
    INFO("tests/golden/" << file.stem << ".bin");
    const Golden g = read_golden(file.stem);
    for (const float v : g.input) subnormal += v != 0.0f && std::fabs(v) < 1.17549435e-38f;
    const Result want = codec(file, g);
    for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      Result got;
      bool exact, kept;
      {
        const Environment other(rounding);
        exact = is_exact();
        got = codec(file, g);
        kept = other.kept();
      }
      CHECK(!exact);
      CHECK(kept);
      CHECK(got.encoded.data == want.encoded.data);
      CHECK(got.encoded.scales == want.encoded.scales);
      CHECK(equal_bits(got.decoded, want.decoded));
      CHECK(same(got.global, want.global));
    }
  }
  CHECK(subnormal > 1000);
}

TEST_CASE("packing gives the same bytes whatever the process does to floats", "[pack]") {
  for (const char* text :
       {"gemm x=f16 w=q4_k y=f16 m=1 n=64 k=512 pack=tiles", "gemm x=bf16 w=mxfp4 y=f16 m=1 n=64 k=512 pack=tiles",
        "gemm x=f16 w=uint4_g64 y=f16 m=1 n=64 k=512 pack=tiles",
        "gemm x=f16 w=q3_k y=f16 m=1 n=64 k=512 pack=tiles"}) {
    INFO(text);
    const Problem problem = Problem::parse(text);
    const Gemm& g = *problem.as<Gemm>();
    auto x = gauss(static_cast<std::size_t>(g.n * g.k), 1.0f, 4);
    for (std::size_t i = 0; i < x.size(); i += 3) x[i] *= 1e-7f;  // halves below their normal numbers
    Encoded w = encode(g.w, x, g.k);
    const auto pack = [&] {
      Encoded tiles, back = w;
      tiles.data.resize(static_cast<std::size_t>(packed_bytes(g, StreamName::data)));
      tiles.scales.resize(static_cast<std::size_t>(packed_bytes(g, StreamName::scales)));
      pack_weights(g, w.in(), tiles.out());
      std::fill(back.data.begin(), back.data.end(), u8{0});
      unpack_weights(g, tiles.in(), back.out());
      CHECK(back.data == w.data);
      return tiles;
    };
    const Encoded want = pack();
    const Environment other(FE_UPWARD);
    const Encoded got = pack();
    CHECK(other.kept());
    CHECK(got.data == want.data);
    CHECK(got.scales == want.scales);
  }
}

// Scales of 16 bits are compared with what a format holds of them: flushed subnormals would all be equal to zero.
TEST_CASE("imports and exports refuse and take the same whatever the process does to floats", "[import]") {
  using namespace import_test;
  Random fits(Checkpoint::compressed_tensors, 16, 64, 32, TensorType::bf16, true, false, 3);
  Random rows(Checkpoint::compressed_tensors, 16, 64, -1, TensorType::bf16, true, false, 4);
  Random tiny(Checkpoint::compressed_tensors, 16, 64, 32, TensorType::bf16, true, false, 5);
  const std::uint16_t least = 1;  // a subnormal bf16, which no half is
  std::memcpy(tiny.scales.data(), &least, 2);
  tiny.weight.scales.bytes = tiny.scales;
  const Format grouped = Format::parse("int4_g32"), per_row = Format::parse("int4_row");
  const Streams want = imported(fits.weight, grouped), want_rows = imported(rows.weight, per_row);
  Streams subnormal = want_rows;
  const float between = 0x1.01p-130f;  // no bf16
  std::memcpy(subnormal.scales.data(), &between, 4);
  for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    Streams got = want, got_rows = want_rows;
    CheckpointBytes back, lost;
    bool refused_import = false, refused_export = false, kept;
    {
      const Environment other(rounding);
      got = imported(fits.weight, grouped);
      got_rows = imported(rows.weight, per_row);
      (void)export_weights(per_row, got_rows.data, got_rows.scales, rows.weight, {}, back);
      try {
        (void)imported(tiny.weight, grouped);
      } catch (const tilewright::Error&) {
        refused_import = true;
      }
      try {
        (void)export_weights(per_row, subnormal.data, subnormal.scales, rows.weight, {}, lost);
      } catch (const tilewright::Error&) {
        refused_export = true;
      }
      kept = other.kept();
    }
    CHECK(kept);
    CHECK(got.data == want.data);
    CHECK(got.scales == want.scales);
    CHECK(got_rows.scales == want_rows.scales);
    CHECK(back.scales == rows.scales);
    CHECK(back.codes == rows.codes);
    CHECK(refused_import);
    CHECK(refused_export);
  }
}
