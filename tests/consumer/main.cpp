// SPDX-License-Identifier: Apache-2.0
// Touches every public class, so that a symbol that was not exported fails to link, and a type that was not exported
// fails to be caught.
#include <tilewright/tilewright.h>
#include <cstdio>
#include <string_view>

using namespace tilewright;

namespace {

int failures = 0;

void check(bool right, const char* what) {
  if (right) return;
  std::printf("failed: %s\n", what);
  ++failures;
}

template <class F>
void refuses(ErrorCode code, const char* what, const F& f) {
  try {
    f();
    check(false, what);
  } catch (const Error& e) {
    check(e.code() == code, what);
  }
}

}  // namespace

int main() {
  const Problem problem = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=2 n=4096 k=14336");
  check(Problem::parse(problem.text()) == problem, "a problem's text");
  refuses(ErrorCode::invalid_argument, "a wrong problem", [] { Problem::parse("gemm x=nothing"); });
  refuses(ErrorCode::invalid_argument, "a wrong target", [] { arch("sm_1"); });
  check(!Format::all().empty() && !archs().empty() && !families("gemm").empty(), "the catalogue");

  // Members that are not named have defaults, so that -Wextra has nothing to say; tests/consumer compiles with -Werror.
  const CheckpointWeight weight{.packing = Checkpoint::awq, .n = 8, .k = 128, .codes = {.rows = 128, .cols = 1}};
  check(weight.bits == 4 && weight.group == 128, "a weight's defaults");
  const StoreOptions store{.path = ":memory:"};
  const TunePolicy policy{.max_candidates = 3};
  const PrewarmPolicy prewarm{.top = 1};
  const CompileOptions compiler{.nvrtc = "libnvrtc.so"};
  const float x[4] = {}, w[4] = {};
  float y[1] = {};
  const GemmArgs args{.x = {.data = x}, .w = {.data = w}, .y = y, .m = 1};
  check(args.x.data == x && args.w.scales == nullptr && args.y == y && args.alpha == 1 && args.beta == 1,
        "the defaults of a launch's arguments");
  const CastArgs cast{.x = {.data = x}, .y = {.data = y}, .rows = 1};
  const PackArgs pack{.w = {.data = y}, .tiles = {.data = y}};
  check(cast.x.global == nullptr && cast.rows == 1 && pack.tiles.scales == nullptr, "those of casts and of packing");
  check(store.path == ":memory:" && policy.max_candidates == 3 && prewarm.top == 1 && !compiler.compiler_cache,
        "the defaults of options");

  Engine engine({.cache = ":memory:"});
  const auto plans = engine.plan(problem, arch("sm_90a"));
  check(!plans.empty(), "a plan");
  check(Candidate::parse(plans.front().candidate.text()) == plans.front().candidate, "a candidate's text");
  check(!engine.emit(problem, arch("sm_80")).text.empty(), "a source");
  check(family("gemm", plans.front().candidate.family).why_not(problem, arch("sm_90a")).empty(), "a family");
  check(Key().add("a", "b").hash().size() == 64 && sha256_hex("").substr(0, 4) == "e3b0", "a hash");
  check(Store().list().empty(), "an empty store");
  check(std::string_view(to_string(OutcomeKind::measured)) == "measured", "an outcome's name");

  check(TILEWRIGHT_VERSION >= 100 && TILEWRIGHT_VERSION_MAJOR == 0, "a version");

  const std::byte none[8] = {};
  refuses(ErrorCode::invalid_argument, "a file that is no GGUF", [&] { Gguf(ByteSource::memory(none)); });
  refuses(ErrorCode::invalid_argument, "a file that is no safetensors", [&] { Safetensors(ByteSource::memory(none)); });
  refuses(ErrorCode::io, "a file that is not there", [] { Safetensors::open("/nonexistent"); });
  const GgufTensor tensor{.name = "w", .dims = {64, 3}};
  const SafetensorsTensor other{.name = "w", .shape = {3, 64}};
  check(tensor.rows() == 3 && other.rows() == 3 && other.cols() == 64, "a tensor's shape");

  check(Memory().size() == 0, "no memory");
  const int devices = Device::count();
  refuses(devices ? ErrorCode::invalid_argument : ErrorCode::library_missing, "a device that is not there", [&] {
    try {
      Device::open(1000);
    } catch (const Error& e) {  // a driver without a device is not a missing driver
      if (devices == 0 && e.code() == ErrorCode::invalid_argument)
        throw Error(ErrorCode::library_missing, e.field(), e.value(), e.allowed());
      throw;
    }
  });
  std::printf("consumer: %zu candidates, %d devices, %d failures\n", plans.size(), devices, failures);
  return failures ? 1 : 0;
}
