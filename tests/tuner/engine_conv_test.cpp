// SPDX-License-Identifier: Apache-2.0
// What was chosen for a convolution serves others of its size bucket: other batches, chunks and widths with about as
// many output pixels.
#include <algorithm>
#include <cmath>

#include <tilewright/store.h>

#include "templates/common/families.h"
#include "tuner/keys.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// With as many output pixels as input ones; 257 to 512 are one bucket.
Problem of_size(const std::string& size) {
  return Problem::parse("conv x=f16 w=f16 y=f32 c=16 k=16 kernel=3 pad=1 " + size);
}
Problem tuned() { return of_size("n=1 in=24x20"); }

// Some problems of of_size() on the driver double, whose device memory is the host's.
struct HostConv {
  std::vector<Problem> problems;
  std::vector<std::byte> oracle;  // image

  explicit HostConv(std::vector<Problem> all) : problems(std::move(all)) {
    Engine engine(options(""));
    CompileOptions compiler;
    compiler.nvrtc = engine.options().nvrtc;
    oracle = compile(engine.task(problems.front(), target()).oracle(), target(), compiler).image;
    fake_cuda_set_launch_handler(&HostConv::handle, this);
  }

  static void handle(const FakeLaunch* launch, void* self) {
    if (!std::string_view(launch->entry).starts_with("tw_")) return;  // the tuner's own
    const auto& host = *static_cast<HostConv*>(self);
    const bool oracle = launch->image_bytes == host.oracle.size() &&
                        std::memcmp(launch->image, host.oracle.data(), launch->image_bytes) == 0;
    for (const Problem& problem : host.problems) {
      const std::vector<std::byte> constants = problem.operation().contract(problem).constants;
      if (std::memcmp(constants.data(), launch->params[1], constants.size()) != 0) continue;
      run(*static_cast<const ConvArgs*>(launch->params[0]), *problem.as<Conv>(), oracle);
      return;
    }
    FAIL("a launch of a problem that is not served");
  }

  static void run(const ConvArgs& args, const Conv& conv, bool oracle) {
    auto* y = static_cast<float*>(args.y);
    // Timed launches repeat what a verified one did; only freshly poisoned outputs are computed.
    unsigned char first[2];
    std::memcpy(first, y, 2);
    if (first[0] != first[1] || (first[0] != 0xff && first[0] != 0x5a)) return;
    const std::int64_t height = conv.in.at[0], width = conv.in.at[1], outputs = conv.n * height * width * conv.k;
    const Format f16 = Format::parse("f16");
    std::vector<float> x(static_cast<std::size_t>(conv.n * height * width * conv.c)),
        w(static_cast<std::size_t>(conv.k * 9 * conv.c));
    f16.info().decode(args.x, 1, static_cast<std::int64_t>(x.size()), x.data());
    f16.info().decode(args.w, 1, static_cast<std::int64_t>(w.size()), w.data());
    for (std::int64_t o = 0; o < outputs; ++o) {
      const std::int64_t channel = o % conv.k, pixel = o / conv.k, col = pixel % width, row = pixel / width % height;
      double sum = 0, magnitude = 0;
      for (int tap = 0; tap < 9; ++tap) {
        const int down = tap / 3 - 1, right = tap % 3 - 1;
        if (row + down < 0 || row + down >= height || col + right < 0 || col + right >= width) continue;
        for (std::int64_t c = 0; c < conv.c; ++c) {
          const double product = double(x[static_cast<std::size_t>((pixel + down * width + right) * conv.c + c)]) *
                                 w[static_cast<std::size_t>((channel * 9 + tap) * conv.c + c)];
          sum += product, magnitude += std::fabs(product);
        }
      }
      y[o] = static_cast<float>(sum);
      if (oracle) y[outputs + o] = static_cast<float>(magnitude * 1e-4 + 1e-6);
    }
  }
};

TunePolicy two() {
  TunePolicy policy = quick_policy();
  policy.max_candidates = 2;
  return policy;
}

void put(Engine& engine, const Device& device, const Problem& problem, const Candidate& candidate) {
  StoredChoice row;
  row.problem = problem.text(), row.candidate = candidate, row.microseconds = 5;
  REQUIRE(engine.store().put_choice(tuner::choice_key(device), row));
}

}  // namespace

TEST_CASE("a convolution's choice serves the other sizes of its bucket, in any process", "[engine]") {
  const TempDir home;
  FakeGpu gpu;
  const std::vector<Problem> others = {of_size("n=1 in=22x20"), of_size("n=2 in=12x20"), of_size("n=1 in=16x17")};
  HostConv host({tuned(), others[0]});
  const Device device = gpu.device();
  Candidate choice;
  {
    Engine engine(options(home / "cache.db"));
    const TuneReport report = engine.tune(tuned(), device, two());
    REQUIRE(report.choice.grade == Grade::exact);
    CHECK(report.measured > 0);
    choice = report.choice.candidate;
  }
  for (const Problem& other : others) {
    INFO(other.text());
    Options given = options(home / "cache.db");
    given.tune = true;
    Engine engine(std::move(given));
    const Choice chosen = engine.choose(other, device);
    CHECK(chosen.grade == Grade::same_bucket);
    CHECK(chosen.candidate == choice);
    CHECK(chosen.microseconds > 0);
    CHECK(engine.emit(other, target()).text == engine.emit(tuned(), target()).text);
    // Neither searched nor compiled.
    const Kernel kernel = engine.prepare(other, device);
    CHECK(kernel.candidate(other.rows()) == choice);
    const TuneReport report = engine.tune(other, device, two());
    CHECK(report.key == tuned().text());
    CHECK(report.choice.candidate == choice);
    CHECK(report.choice.grade == Grade::same_bucket);
    REQUIRE_FALSE(report.outcomes.empty());
    CHECK(report.outcomes.front().stored);
    CHECK(engine.stats().measured == 0);
    CHECK(engine.stats().compiled == 0);
    CHECK_FALSE(engine.store().find_choice(tuner::choice_key(device), other.text()));
    const std::string why = engine.explain(other, target(), &device);
    CHECK(mentions(why, "bucket: all sizes with 257 to 512 pixels\n"));
    CHECK(mentions(why, "measured for: " + tuned().text() + "\n"));
  }
  // Another bucket's is a neighbour; other channels have nothing in common.
  Engine engine(options(home / "cache.db"));
  CHECK(engine.choose(of_size("n=1 in=26x20"), device).grade == Grade::neighbour);
  CHECK(engine.choose(of_size("n=1 in=12x20"), device).grade == Grade::neighbour);
  CHECK(engine.choose(Problem::parse("conv x=f16 w=f16 y=f32 n=1 c=16 in=22x20 k=32 kernel=3 pad=1"), device).grade ==
        Grade::ranked);
  // Asked to, a search measures the problem itself, which then has a choice of its own.
  TunePolicy again = two();
  again.retune = true;
  CHECK(engine.tune(others[0], device, again).measured > 0);
  CHECK(engine.choose(others[0], device).grade == Grade::exact);
  CHECK(engine.choose(tuned(), device).grade == Grade::exact);
}

TEST_CASE("of several choices of a size bucket the nearest legal one serves, and one of one's own first", "[engine]") {
  FakeGpu gpu;
  const Device device = gpu.device();
  Engine engine(options(""));
  const Problem asked = of_size("n=1 in=22x20");
  const std::vector<Planned> plan = engine.plan(asked, target());
  REQUIRE(plan.size() > 4);
  // The next bucket's is nearer, but no better for it.
  put(engine, device, of_size("n=1 in=26x20"), plan[1].candidate);
  CHECK(engine.choose(asked, device).grade == Grade::neighbour);
  put(engine, device, of_size("n=1 in=13x20"), plan[2].candidate);
  CHECK(engine.choose(asked, device).candidate == plan[2].candidate);
  CHECK(engine.choose(asked, device).grade == Grade::same_bucket);
  put(engine, device, of_size("n=1 in=24x20"), plan[3].candidate);
  CHECK(engine.choose(asked, device).candidate == plan[3].candidate);
  put(engine, device, of_size("n=1 in=24x20"), {plan[3].candidate.family, {{"no", 1}}});
  CHECK(engine.choose(asked, device).candidate == plan[2].candidate);
  put(engine, device, asked, plan[4].candidate);
  CHECK(engine.choose(asked, device).candidate == plan[4].candidate);
  CHECK(engine.choose(asked, device).grade == Grade::exact);
}

TEST_CASE("a choice that other sizes of the bucket cannot use leaves them to the ranking", "[engine]") {
  FakeGpu gpu;
  const Device device = gpu.device();
  Engine engine(options(""));
  const Problem from = of_size("n=1 in=16x16"), to = of_size("n=1 in=1x256");
  std::optional<Candidate> only;
  for (const Planned& p : engine.plan(from, target()))
    if (!only && !illegal(to, target(), p.candidate).empty()) only = p.candidate;
  REQUIRE(only);
  put(engine, device, from, *only);
  CHECK(engine.choose(to, device).grade == Grade::ranked);
  CHECK(illegal(to, target(), engine.choose(to, device).candidate).empty());
}

TEST_CASE("somebody else's choice of a size bucket is used, but answers no search", "[engine]") {
  const TempDir home;
  FakeGpu gpu;
  const Problem asked = of_size("n=1 in=22x20");
  HostConv host({asked});
  const Device device = gpu.device();
  Engine engine(options(""));
  const Candidate hint = engine.plan(tuned(), target()).at(3).candidate;
  {
    Engine other(options(home / "pack.db"));
    put(other, device, tuned(), hint);
  }
  REQUIRE(engine.store().import_from(home / "pack.db").added == 1);
  CHECK(engine.choose(asked, device).candidate == hint);
  CHECK(engine.choose(asked, device).grade == Grade::imported);
  CHECK(engine.tune(asked, device, two()).measured > 0);
  CHECK(engine.choose(asked, device).grade == Grade::exact);
}

TEST_CASE("what was compiled ahead for one size serves the others of its bucket", "[engine]") {
  const TempDir home;
  FakeGpu gpu;
  const Problem problem = tuned();
  const Arch* targets[] = {&target()};
  PrewarmPolicy policy;
  policy.top = 1;
  CHECK(Engine(options(home / "cache.db")).prewarm({&problem, 1}, targets, policy).compiled > 0);
  Options given = options(home / "cache.db");
  given.compile = false;
  Engine engine(std::move(given));
  engine.prepare(of_size("n=2 in=12x20"), gpu.device());
  CHECK(engine.stats().compiled == 0);
}
