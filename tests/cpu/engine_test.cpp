// SPDX-License-Identifier: Apache-2.0
// The whole way on a CPU: chosen, compiled, verified, measured, remembered, and what happens where no compiler is.
#include <dlfcn.h>
#include <stdlib.h>
#include <tilewright/host_archs.h>
#include <tilewright/store.h>
#include <tilewright/tilewright.h>

#include <fmt/format.h>

#include <filesystem>
#include <mutex>
#include <thread>

#include "cpu_test.h"
#include "templates/common/families.h"
#include "tuner/keys.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "tilewright_cpu_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()));
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
};

Options options_in(const Folder& folder) {
  Options o;
  o.cache = (folder.path / "cache.db").string();
  o.llvm = llvm().llvm;
  return o;
}
Options without_compiler(const Folder& folder) {
  Options o = options_in(folder);
  o.llvm = "/nonexistent";
  return o;
}

const char* const kText = "gemm x=q8_1 w=q4_0 y=f32 m=2 n=64 k=128 pack=panels x_from=f32";

// Runs a problem on its own random operands and returns y; the test fails if that is wrong.
std::vector<std::byte> computed(const Problem& problem, const Kernel& kernel) {
  Task task;
  problem.operation().describe(problem, task);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<void*> pointers;
  std::vector<std::span<std::byte>> spans;
  for (const Buffer& b : task.buffers) {
    bytes.emplace_back(b.bytes, std::byte{0xff});
    if (!b.output && b.fill) b.fill(bytes.back(), 1);
  }
  for (auto& b : bytes) pointers.push_back(b.data()), spans.emplace_back(b);
  kernel.launch(nullptr, task.arguments(pointers, problem.rows()), problem.rows(), problem.cols());
  const std::string wrong = problem.operation().check_on_host(problem, task, spans).wrong;
  {
    static std::mutex mutex;  // Catch2 takes assertions of one thread at a time
    const std::lock_guard lock(mutex);
    CHECK(wrong == "");
  }
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (task.buffers[i].output) return bytes[i];
  return {};
}

TunePolicy quick() {
  TunePolicy p;
  p.max_candidates = 3;
  p.budget_seconds = 5;
  p.cold_bytes = 1e6;
  return p;
}

}  // namespace

TEST_CASE("a problem is prepared for the CPU, and a second process compiles nothing") {
  const Folder folder;
  const Problem problem = Problem::parse(kText);
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  std::vector<std::byte> first;
  {
    Engine engine(options_in(folder));
    first = computed(problem, engine.prepare(problem, device));
    CHECK(engine.stats().compiled > 0);
    CHECK(engine.stats().built_in == 0);
  }
  for (const bool compiler : {true, false}) {
    Engine engine(compiler ? options_in(folder) : without_compiler(folder));
    CHECK(computed(problem, engine.prepare(problem, device)) == first);
    CHECK(engine.stats().compiled == 0);
    CHECK(engine.stats().cache_hits > 0);
    CHECK(engine.stats().built_in == 0);
  }
}

TEST_CASE("without a compiler and without stored objects the built-in kernels serve, and it is said") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Folder folder;
  const Problem problem = Problem::parse(kText);
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  std::string said;
  Options o = without_compiler(folder);
  o.log = [&](LogLevel level, std::string_view message) {
    said += (level == LogLevel::warning ? "warning: " : "") + std::string(message) + "\n";
  };
  Engine engine(o);
  const Kernel kernel = engine.prepare(problem, device);
  CHECK(kernel.candidate(2).family != "cpu_reference");
  const auto y = computed(problem, kernel);
  CHECK(engine.stats().compiled == 0);
  CHECK(engine.stats().built_in > 0);
  CHECK(said.find("warning: ") != std::string::npos);
  CHECK(said.find("the kernel that is built in serves, and may take a third longer, since libLLVM") !=
        std::string::npos);
  // The same bits as compiled.
  const Folder other;
  Engine compiled(options_in(other));
  CHECK(computed(problem, compiled.prepare(problem, device)) == y);
}

TEST_CASE("each launch is a line of the log where that is asked for") {
  const Folder folder;
  const Problem problem = Problem::parse(kText);
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  for (const bool asked : {false, true}) {
    std::string said;
    Options o = options_in(folder);
    o.log_launches = asked;
    o.log_level = LogLevel::error;
    o.log = [&](LogLevel, std::string_view message) { said += std::string(message) + "\n"; };
    Engine engine(o);
    const Kernel kernel = engine.prepare(problem, device);
    CHECK(said.empty());
    computed(problem, kernel);
    INFO(said);
    CHECK(said.starts_with("launch: " + problem.text() + "; " + kernel.candidate(problem.rows()).text()) == asked);
    CHECK(said.ends_with(" us; " + device.name() + "\n") == asked);
    if (!asked) CHECK(said.empty());
  }
}

TEST_CASE("each launch is a range of NVTX where that is asked for") {
  const Folder folder;
  const Problem problem = Problem::parse(kText);
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  void* const library = ::dlopen(TILEWRIGHT_FAKE_NVTX, RTLD_NOW);
  REQUIRE(library);
  const auto calls = reinterpret_cast<const char* (*)()>(::dlsym(library, "fake_nvtx_calls"));
  Options o = options_in(folder);
  computed(problem, Engine(o).prepare(problem, device));
  CHECK(std::string(calls()).empty());

  o.nvtx = TILEWRIGHT_FAKE_NVTX;
  const Kernel kernel = Engine(o).prepare(problem, device);  // its ranges outlive the Engine
  CHECK(std::string(calls()).empty());
  computed(problem, kernel);
  const std::string one = fmt::format("push {}; {}\npop\n", problem.text(), kernel.candidate(problem.rows()).text());
  CHECK(calls() == one);
  o.log_launches = true;
  std::string said;
  o.log = [&](LogLevel, std::string_view message) { said += std::string(message) + "\n"; };
  {
    Engine engine(o);
    computed(problem, engine.prepare(problem, device));
  }
  CHECK(calls() == one + one);
  CHECK(said.starts_with("launch: "));

  o.nvtx = "/nonexistent/libnvToolsExt.so.1", said.clear();
  computed(problem, Engine(o).prepare(problem, device));
  CHECK(said.starts_with("launches have no NVTX ranges"));
  CHECK(said.find("/nonexistent/libnvToolsExt.so.1") != std::string::npos);
  CHECK(calls() == one + one);
}

TEST_CASE("a CPU without vector instructions gets the reference") {
  const Arch& plain = cpu_archs().front();
  const Problem problem = Problem::parse(kText);
  const Folder folder;
  Engine engine(options_in(folder));
  const std::vector<Planned> planned = engine.plan(problem, plain);
  REQUIRE(planned.size() == 1);
  CHECK(planned[0].candidate.family == "cpu_reference");
  CHECK(engine.explain(problem, plain).find("lacks AVX2") != std::string::npos);
}

TEST_CASE("tuning measures, verifies and remembers") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Folder folder;
  const Problem problem = Problem::parse(kText);
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  Candidate chosen;
  {
    Engine engine(options_in(folder));
    const TuneReport report = engine.tune(problem, device, quick());
    CHECK(report.measured >= 1);
    for (const Outcome& o : report.outcomes) {
      INFO(o.candidate.text() << ": " << o.detail);
      CHECK(o.kind == OutcomeKind::measured);
      CHECK(o.error <= 1);
    }
    chosen = report.choice.candidate;
    if (report.noisy) return;  // a busy machine: used, but not stored
    CHECK(engine.choose(problem, device).grade == Grade::exact);
  }
  Engine engine(without_compiler(folder));
  CHECK(engine.choose(problem, device).candidate == chosen);
  computed(problem, engine.prepare(problem, device));
  CHECK(engine.tune(problem, device, quick()).measured == 0);
}

TEST_CASE("the text of a target is that of its stored choice") {
  const Problem problem = Problem::parse(kText);
  for (const Arch* target : host_archs()) {
    if (target->cpu->vector_bytes == 0) continue;  // it has the reference alone
    INFO(target->name);
    const Folder folder;
    const Options options = options_in(folder);
    const auto plans = Engine(options).plan(problem, *target);
    REQUIRE(plans.size() > 2);
    const Candidate &first = plans[0].candidate, &other = plans[1].candidate;
    const auto text = [&](const Candidate& c) { return family("gemm", c.family).source(problem, *target, c).text; };
    REQUIRE(text(first) != text(other));
    CHECK(Engine(options).emit(problem, *target).text == text(first));
    const Device device = Device::open_cpu({.parallel_for = {}, .target = target->name});
    Store({.path = options.cache})
        .put_choice(tuner::choice_key(device), {.problem = problem.text(), .candidate = other});
    CHECK(Engine(options).emit(problem, *target).text == text(other));
    for (const Arch* a : host_archs())
      if (a != target) CHECK(Engine(options).emit(problem, *a).text == Engine(Options()).emit(problem, *a).text);
  }
}

TEST_CASE("groups are tuned, remembered and served, and their weights packed") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  for (const char* text : {"gemm x=q8_1 w=q4_0 y=bf16 m=4 n=64 k=128 groups=5",
                           "gemm x=bf16 w=bf16 y=bf16 m=4 n=64 k=100 groups=5 group_layout=masked bias=f32"}) {
    INFO(text);
    const Folder folder;
    Candidate chosen;
    std::vector<std::byte> y;
    {
      Engine engine(options_in(folder));
      const Problem problem = engine.packed(Problem::parse(text), device.arch());
      REQUIRE(problem.as<Gemm>()->packing == Packing::panels);
      const TuneReport report = engine.tune(problem, device, quick());
      CHECK(report.measured >= 1);
      for (const Outcome& o : report.outcomes) {
        INFO(o.candidate.text() << ": " << o.detail);
        CHECK(o.kind == OutcomeKind::measured);
      }
      chosen = report.choice.candidate;
      const Kernel kernel = engine.prepare(problem, device);
      for (const std::int64_t m : {1, 2, 4, 7, 40}) computed(problem.with_rows(m), kernel);
      y = computed(problem, kernel);
      if (report.noisy) continue;  // a busy machine: used, but not stored
    }
    Engine engine(without_compiler(folder));
    const Problem problem = engine.packed(Problem::parse(text), device.arch());
    CHECK(engine.choose(problem, device).candidate == chosen);
    CHECK(computed(problem, engine.prepare(problem, device)) == y);
    CHECK(engine.stats().built_in == 0);
  }
  // The reference, of weights as they are stored.
  const Folder folder;
  Engine engine(options_in(folder));
  const Problem stored = Problem::parse("gemm x=bf16 w=q4_0 y=bf16 m=4 n=64 k=128 groups=5");
  const TuneReport report = engine.tune(stored, device, quick());
  REQUIRE(report.outcomes.size() == 1);
  CHECK(report.outcomes[0].kind == OutcomeKind::measured);
}

TEST_CASE("all numbers of rows are served") {
  const Folder folder;
  Engine engine(options_in(folder));
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  const Problem problem = Problem::parse(kText);
  const Kernel kernel = engine.prepare(problem, device);
  for (const std::int64_t m : {1, 2, 7, 16, 100, 300}) computed(problem.with_rows(m), kernel);
}

TEST_CASE("weights are packed once, by the engine or the host, to the same bytes and back") {
  const Folder folder;
  Engine engine(options_in(folder));
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  const Problem plain = Problem::parse("gemm x=q8_1 w=q8_0 y=f32 m=2 n=64 k=96 x_from=f32");
  const Problem packed = engine.packed(plain, device.arch());
  if (!host_arch().cpu->vector_bytes) {
    CHECK(packed == plain);
    return;
  }
  REQUIRE(packed.text().find("pack=panels") != std::string::npos);
  const Gemm& g = *packed.as<Gemm>();
  std::vector<std::byte> w(static_cast<std::size_t>(g.w.stream_bytes(0, g.n, g.k))), panels(w.size()), wanted(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<std::byte>(i * 7);
  Memory from(device, w.size()), to(device, w.size());
  from.upload(w);
  engine.pack(packed, device, nullptr, {from.data(), nullptr, nullptr}, {to.data(), nullptr, nullptr});
  to.download(panels);
  pack_weights(g, {w.data(), nullptr, nullptr}, {wanted.data(), nullptr, nullptr});
  CHECK(panels == wanted);
  const Problem back(Pack{g.w, g.x, g.n, g.k, true, Packing::panels});
  PackArgs args;
  from.fill(0);
  args.w.data = from.data();
  args.tiles.data = to.data();
  engine.prepare(back, device).launch(nullptr, args);
  from.download(panels);
  CHECK(panels == w);
}

TEST_CASE("what the new formats need goes the whole way: packed by the engine, prepared, computed") {
  const Folder folder;
  Engine engine(options_in(folder));
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  for (const char* text : {"gemm x=q8_1 w=nvfp4 y=f16 m=3 n=64 k=96 x_from=f16 global=div bias=f16 act=gelu",
                           "gemm x=int8_row w=int8_row y=bf16 m=40 n=64 k=96 x_from=f32 c=bf16",
                           "gemm x=int8_row w=uint4_g128 y=int8 m=5 n=64 k=256 y_scale=0.1",
                           "gemm x=q8_1 w=int4_g64 y=f32 m=5 n=64 k=128 groups=3",
                           "gemm x=q8_1 w=nvfp4 y=f32 m=5 n=64 k=128 groups=3 global=mul",
                           "gemm x=bf16 w=bf16 y=bf16 m=9 n=64 k=100 act=silu"}) {
    INFO(text);
    const Problem plain = Problem::parse(text), packed = engine.packed(plain, device.arch());
    if (!host_arch().cpu->vector_bytes) {
      CHECK(packed == plain);
      continue;
    }
    REQUIRE(packed.text().find("pack=panels") != std::string::npos);
    computed(packed, engine.prepare(packed, device));
    // Streams of a weight as it is stored, to panels and back.
    const Gemm& g = *packed.as<Gemm>();
    std::vector<std::vector<std::byte>> from, to;
    MutableOperand w, panels, wanted, back;
    const auto space = [&](StreamName name, std::int64_t bytes, MutableOperand& operand) {
      if (bytes == 0) return;
      from.emplace_back(static_cast<std::size_t>(bytes));
      for (std::size_t i = 0; i < from.back().size(); ++i) from.back()[i] = static_cast<std::byte>(7 * i + from.size());
      operand.set(name, from.back().data());
    };
    for (const StreamName name : kStreams) {
      space(name, packed_bytes(*plain.as<Gemm>(), name), w);
      space(name, packed_bytes(g, name), panels);
      space(name, packed_bytes(g, name), wanted);
      space(name, packed_bytes(*plain.as<Gemm>(), name), back);
    }
    engine.pack(packed, device, nullptr, w, panels);
    pack_weights(g, w, wanted);
    unpack_weights(g, panels, back);
    for (const StreamName name : kStreams) {
      if (g.groups && name == StreamName::global) continue;  // of a stack the engine leaves them to the caller
      const auto bytes = static_cast<std::size_t>(packed_bytes(g, name)),
                 stored = static_cast<std::size_t>(packed_bytes(*plain.as<Gemm>(), name));
      if (bytes) CHECK(std::memcmp(panels.at(name), wanted.at(name), bytes) == 0);
      if (stored) CHECK(std::memcmp(back.at(name), w.at(name), stored) == 0);
    }
  }
}

TEST_CASE("casts need no compiler") {
  const Folder folder;
  Engine engine(without_compiler(folder));
  const Device device = Device::open_cpu({.threads = 3, .parallel_for = {}});
  const Problem problem = Problem::parse("cast x=bf16 y=q4_k rows=9 cols=512");
  const Kernel kernel = engine.prepare(problem, device);
  for (const std::int64_t rows : {1, 9, 200}) computed(problem.with_rows(rows), kernel);
}

TEST_CASE("a convolution is verified and measured by as many of its pixels as the oracle has time for") {
  const Folder folder;
  Engine engine(options_in(folder));
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  // The second has more multiplications than the oracle takes: its first pixels stand for all.
  for (const char* text : {"conv x=f32 w=f32 y=f32 n=2 c=8 in=5x5 k=20 kernel=3 pad=1 y_layout=ncdhw",
                           "conv x=f32 w=f32 y=bf16 n=2 c=64 in=16x16 k=68 kernel=3 pad=1 y_layout=ncdhw"}) {
    INFO(text);
    const Problem problem = Problem::parse(text);
    const TuneReport report = engine.tune(problem, device, quick());
    CHECK(report.measured >= 1);
    for (const Outcome& o : report.outcomes) {
      INFO(o.candidate.text() << ": " << o.detail);
      CHECK(o.kind == OutcomeKind::measured);
      CHECK(o.error <= 1);
    }
    computed(problem, engine.prepare(problem, device));
  }
}

TEST_CASE("a convolution's weights are packed by the engine; it is tuned, prepared and computed") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Folder folder;
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  const Problem plain = Problem::parse("conv x=f16 w=bf16 y=f16 n=1 c=21 in=7x7 k=48 kernel=3 pad=1 bias=f32");
  const std::size_t bytes = 48 * 9 * 21 * 2, of_panels = 48 * (9 * 21 + 1) * 2;  // pairs of columns
  std::vector<std::byte> w(bytes), panels(of_panels), wanted(of_panels);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<std::byte>(i * 7);
  Engine engine(options_in(folder));
  const Problem packed = engine.packed(plain, device.arch());
  REQUIRE(packed.text().find("pack=panels") != std::string::npos);
  Memory from(device, bytes), to(device, of_panels);
  from.upload(w);
  engine.pack(packed, device, nullptr, {from.data(), nullptr, nullptr}, {to.data(), nullptr, nullptr});
  to.download(panels);
  Gemm g{.x = Format::parse("f16"), .w = Format::parse("bf16"), .y = Format::parse("f16")};
  g.n = 48, g.k = 9 * 21, g.packing = Packing::panels;
  CHECK(packed_bytes(g, StreamName::data) == static_cast<std::int64_t>(of_panels));
  pack_weights(g, {w.data(), nullptr, nullptr}, {wanted.data(), nullptr, nullptr});
  CHECK(panels == wanted);
  const TuneReport report = engine.tune(packed, device, quick());
  CHECK(report.measured >= 1);
  for (const Outcome& o : report.outcomes) {
    INFO(o.candidate.text() << ": " << o.detail);
    CHECK(o.candidate.family == "cpu_columns");
    CHECK(o.kind == OutcomeKind::measured);
    CHECK(o.error <= 1);
  }
  const std::vector<std::byte> y = computed(packed, engine.prepare(packed, device));
  const Folder empty;
  Engine built(without_compiler(empty));
  CHECK(computed(packed, built.prepare(packed, device)) == y);
  CHECK(built.stats().built_in > 0);
}

TEST_CASE("a convolution is prepared for the CPU, and a second process compiles nothing") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Folder folder;
  const Problem problem = Problem::parse("conv x=f32 w=f32 y=f32 n=1 c=20 in=9x9 k=24 kernel=3 pad=1 bias=f32");
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  std::vector<std::byte> first;
  {
    Engine engine(options_in(folder));
    const Kernel kernel = engine.prepare(problem, device);
    CHECK(kernel.candidate(problem.rows()).family == "cpu_columns");
    first = computed(problem, kernel);
    CHECK(engine.stats().compiled > 0);
  }
  {
    Engine engine(without_compiler(folder));
    CHECK(computed(problem, engine.prepare(problem, device)) == first);
    CHECK(engine.stats().compiled == 0);
    CHECK(engine.stats().cache_hits > 0);
    CHECK(engine.stats().built_in == 0);
  }
  // Without either, what is built in gives the same bits.
  const Folder empty;
  Engine engine(without_compiler(empty));
  CHECK(computed(problem, engine.prepare(problem, device)) == first);
  CHECK(engine.stats().built_in > 0);
}

TEST_CASE("without a compiler convolutions of every size have a kernel") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  for (const char* text : {"conv x=f32 w=f32 y=f32 n=1 c=64 in=56x56 k=64 kernel=3 pad=1",
                           "conv x=f16 w=f16 y=f16 n=1 c=8 in=3 k=600 kernel=3",
                           "conv x=bf16 w=bf16 y=bf16 n=1 c=32 in=9x9 k=32 groups=32 kernel=3"}) {
    INFO(text);
    const Folder folder;
    Engine engine(without_compiler(folder));
    computed(Problem::parse(text), engine.prepare(Problem::parse(text), device));
    CHECK(engine.stats().built_in > 0);
  }
}

TEST_CASE("prewarming for CPUs needs libLLVM alone, and what it stores serves without") {
  const Folder folder;
  const Problem problem = Problem::parse(kText);
  const Arch* const targets[] = {&arch("x86-64-v3"), &arch("x86-64-v4+vnni")};
  {
    Options o = options_in(folder);
    o.nvrtc = "/nonexistent";
    Engine engine(o);
    const PrewarmReport report = engine.prewarm(std::span(&problem, 1), targets);
    INFO(fmt::format("{}", fmt::join(report.failures, "; ")));
    CHECK(report.failed == 0);
    CHECK(report.compiled > 4);
  }
  const Folder empty;
  Engine none(without_compiler(empty));
  CHECK(refusal([&] { none.prewarm(std::span(&problem, 1), targets); }).code() == ErrorCode::library_missing);
}

TEST_CASE("operations without kernels for CPUs are refused with a reason") {
  const Folder folder;
  Engine engine(options_in(folder));
  const Device device = Device::open_cpu();
  for (const char* text : {"amax x=f32 rows=4 cols=64", "transpose x=int8 rows=4 cols=64"}) {
    INFO(text);
    const Error e = refusal([&] { engine.prepare(Problem::parse(text), device); });
    CHECK(e.code() == ErrorCode::unsupported);
    CHECK(e.allowed().find("no kernels for CPUs yet") != std::string::npos);
  }
}

TEST_CASE("threads that ask for one problem get one kernel, and launch it at once") {
  const Folder folder;
  Engine engine(options_in(folder));
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  const Problem problem = Problem::parse(kText);
  const auto wanted = computed(problem, engine.prepare(problem, device));
  std::atomic<int> equal{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) equal += computed(problem, engine.prepare(problem, device)) == wanted;
    });
  for (std::thread& t : threads) t.join();
  CHECK(equal == 40);
}

TEST_CASE("a search of all rows of a grouped, packed problem ends within its budget") {
  const Folder folder;
  Engine engine(options_in(folder));
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  // Eight thousand rows of each group take a second a launch: each number of rows was measured before, whatever the
  // budget.
  const Problem problem =
      engine.packed(Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=64 n=1024 k=1024 groups=8"), device.arch());
  TunePolicy policy;
  policy.all_rows = true;
  policy.budget_seconds = 3;
  policy.cold_bytes = 4e7;
  const TuneReport r = engine.tune(problem, device, policy);
  CHECK(r.stopped == "budget");
  CHECK(r.measured > 0);
  CHECK(r.seconds <= 1.1 * policy.budget_seconds + 2);
  REQUIRE_FALSE(r.ranges.empty());
  CHECK(std::any_of(r.ranges.begin(), r.ranges.end(), [](const RowRange& range) { return range.measured; }));
}

TEST_CASE("a stored choice for a text that is no problem harms neither its neighbours nor a listing",
          "[problems_fuzz]") {
  const Folder theirs, ours;
  const Device device = Device::open_cpu();
  // Parsing the first, which another cache may contain, once ended the process.
  std::string path;
  {
    Engine engine(options_in(theirs));
    for (const std::string w : {"nf4", "ternary_row", "not_a_format"}) {
      StoredChoice choice;
      choice.problem = "gemm x=q8_1 w=" + w + " y=f32 m=4 n=16 k=128 pack=panels groups=2";
      choice.candidate = Candidate::parse("cpu_reference oracle=0");
      choice.microseconds = 5;
      REQUIRE(engine.store().put_choice(tuner::choice_key(device), choice));
    }
    path = options_in(theirs).cache;
  }
  Engine engine(options_in(ours));
  const MergeReport report = engine.store().import_from(path);
  CHECK(report.added == 3);
  const Problem neighbour = Problem::parse("gemm x=q8_1 w=nf4 y=f32 m=4 n=32 k=128");
  computed(neighbour, engine.prepare(neighbour, device));
  CHECK(engine.store().choices(tuner::choice_key(device), "gemm").size() == 3);
}
