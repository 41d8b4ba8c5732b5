// SPDX-License-Identifier: Apache-2.0
// Compile workers that are missing, die, or answer nonsense; and the messages between.
#include "tuner/build/worker.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "support/paths.h"
#include "templates/common/fill.h"
#include "tuner/build/child.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::tuner;
using test::error_of;

namespace {

Source sample() {
  Source s = test::toy_task(1).source(test::toy(0));
  s.headers = {{"a.cuh", "x"}, {"b.cuh", std::string(1000, 'y')}};
  s.options = {"--maxrregcount=64"};
  s.plan.y = {7, 1, 2};
  s.plan.persistent = 3;
  s.plan.overlap = true;
  s.plan.most_rows = 48;
  s.plan.cpu = {{1, 16, 0}, {2, 0, 0}, {3, 0, 8}, 5, true};
  return s;
}

// With maps, which the compiler never looks at.
Source mapped() {
  Source s = sample();
  s.plan.map_count = 2;
  s.plan.maps[0] = {.pointer = 1,
                    .behind = std::uint64_t{1} << 33,
                    .rows_at = 2,
                    .rows = 3,
                    .stride_at = 4,
                    .inner = 5,
                    .element_bytes = 6,
                    .box_inner = 7,
                    .box_rows = 8,
                    .swizzle = 9};
  s.plan.maps[1].inner_at = 10;
  s.plan.maps[1].box_panels = 11, s.plan.maps[1].tile_boxes = 14;
  s.plan.maps[1].block = 12, s.plan.maps[1].block_elements = 13;
  s.plan.maps[1].inner = s.plan.maps[1].rows = ~std::uint64_t{1};
  return s;
}

// Its request does not fit into a socket's buffer.
Source large() {
  Source s = sample();
  s.headers.push_back({"large.cuh", std::string(8 << 20, ' ')});
  return s;
}

std::string script(const test::TempDir& dir, const char* name, const std::string& line) {
  const std::string path = dir / name;
  std::ofstream(path) << "#!/bin/sh\n" << line << "\n";
  ::chmod(path.c_str(), 0700);
  return path;
}

bool runs(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string number, name, state;
  return file >> number >> name >> state && state != "Z";
}

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

CompileOptions compiler() {
  CompileOptions c;
  c.nvrtc = test::options("").nvrtc;
  return c;
}

}  // namespace

TEST_CASE("messages survive the way there and back", "[worker]") {
  auto q = decode_request(encode_request(sample(), arch("sm_90a"), compiler()));
  REQUIRE(q);
  CHECK(q->target == "sm_90a");
  CHECK(q->options.nvrtc == compiler().nvrtc);
  CHECK(q->source.text == sample().text);
  CHECK(q->source.plan == sample().plan);
  CHECK(q->source.options == sample().options);
  REQUIRE(q->source.headers.size() == 2);
  CHECK(q->source.headers[1].text == sample().headers[1].text);

  CHECK(decode_request(encode_request(mapped(), arch("sm_90a"), compiler()))->source.plan == mapped().plan);

  Binary b;
  b.target = "sm_90a";
  b.entry = sample().entry;
  b.plan = mapped().plan;
  error_of(ErrorCode::compile_failed, [&] { decode_reply(encode_reply(b), sample(), arch("sm_90a")); });
  CHECK(decode_reply(encode_reply(b), mapped(), arch("sm_90a")).plan == mapped().plan);
  b.plan = sample().plan;
  b.resources = {32, 1, 2, 3, true};
  b.image.assign(100, std::byte{7});
  b.log = "log";
  b.seconds = 0.25;
  Binary back = decode_reply(encode_reply(b), sample(), arch("sm_90a"));
  CHECK(back.image == b.image);
  CHECK(back.resources == b.resources);
  CHECK(back.seconds == Approx(0.25));
  // A reply to another request must not be stored under this one's key.
  error_of(ErrorCode::compile_failed, [&] { decode_reply(encode_reply(b), sample(), arch("sm_80")); });

  CompileError error("n", "sm_90a", "-o", "text", "line 1: bad");
  try {
    decode_reply(encode_reply(error), sample(), arch("sm_90a"));
    FAIL("no error");
  } catch (const CompileError& e) {
    CHECK(e.log() == "line 1: bad");
    CHECK(e.options() == "-o");
    CHECK(e.source() == sample().text);
  }
  Error missing(ErrorCode::library_missing, "nvrtc", "x", "y");
  CHECK(error_of(ErrorCode::library_missing, [&] {
          decode_reply(encode_reply(missing), sample(), arch("sm_90a"));
        }).field() == "nvrtc");
}

TEST_CASE("truncated and random messages are refused", "[worker]") {
  std::string request = encode_request(sample(), arch("sm_90a"), compiler());
  for (std::size_t n = 0; n < request.size(); ++n) CHECK_FALSE(decode_request(request.substr(0, n)));
  CHECK_FALSE(decode_request(request + "x"));
  Binary b;
  b.target = "sm_90a";
  b.entry = sample().entry;
  b.plan = sample().plan;
  std::string reply = encode_reply(b);
  for (std::size_t n = 0; n < reply.size(); ++n)
    CHECK_THROWS_AS(decode_reply(reply.substr(0, n), sample(), arch("sm_90a")), Error);
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string r = request, a = reply;
    for (int k = 0; k < 4; ++k) {
      r[random.next() % r.size()] = static_cast<char>(random.next());
      a[random.next() % a.size()] = static_cast<char>(random.next());
    }
    decode_request(r);
    try {
      decode_reply(a, sample(), arch("sm_90a"));
    } catch (const Error&) {
    }
  }
}

TEST_CASE("a worker compiles, reports errors, and is started again after it died", "[worker]") {
  Worker worker(paths::compile_worker(), compiler());
  Binary there = worker.compile(sample(), arch("sm_90a"));
  CHECK(there.image == compile(sample(), arch("sm_90a"), compiler()).image);
  CHECK(there.plan == sample().plan);
  Source bad = sample();
  bad.text += "#error stop\n";
  CHECK(
      test::mentions(error_of(ErrorCode::compile_failed, [&] { worker.compile(bad, arch("sm_90a")); }).what(), "stop"));
  pid_t first = worker.pid();
  ::kill(first, SIGKILL);
  error_of(ErrorCode::compile_failed, [&] { worker.compile(sample(), arch("sm_90a")); });
  CHECK_FALSE(worker.compile(sample(), arch("sm_90a")).image.empty());
  CHECK(worker.pid() != first);
}

TEST_CASE("a worker that is missing, silent or not one", "[worker]") {
  CHECK(error_of(ErrorCode::io, [] { Worker("/nonexistent", {}).compile(sample(), arch("sm_90a")); }).field() ==
        "worker");
  for (const char* program : {"/bin/true", "/bin/echo"})  // exits at once; answers "compile-worker\n"
    error_of(ErrorCode::compile_failed, [&] { Worker(program, {}).compile(sample(), arch("sm_90a"), 2); });
  test::TempDir dir;
  const std::string sleeper = script(dir, "sleeper", "exec sleep 100");
  Error late = error_of(ErrorCode::compile_failed, [&] { Worker(sleeper, {}).compile(sample(), arch("sm_90a"), 0.2); });
  CHECK(test::mentions(late.what(), "too long"));
}

TEST_CASE("a worker that does not read, or writes without end, costs its deadline", "[worker]") {
  test::TempDir dir;
  const std::string sleeper = script(dir, "sleeper", "exec sleep 100");
  const std::string zeros = script(dir, "zeros", "exec cat /dev/zero");
  // A valid length, and then a reply that comes byte by byte for ever.
  const std::string trickle =
      script(dir, "trickle", "printf '\\000\\000\\001\\000'; while printf TWA1; do sleep 0.05; done");
  for (const std::string& program : {sleeper, zeros, trickle})
    for (const Source& source : {sample(), large()}) {
      INFO(program << ", " << source.headers.size() << " headers");
      pid_t pid = -1;
      const double seconds = seconds_of([&] {
        Worker worker(program, {});
        const Error e = error_of(ErrorCode::compile_failed, [&] { worker.compile(source, arch("sm_90a"), 0.3); });
        CHECK(e.field() == "compile worker");
        pid = worker.pid();
      });
      CHECK(seconds < 5);
      CHECK(pid == -1);  // stopped, so that the next job starts another
    }
}

TEST_CASE("a worker that answers twice is not believed", "[worker]") {
  test::TempDir dir;
  Binary b;
  b.target = "sm_90a";
  b.entry = sample().entry;
  b.plan = sample().plan;
  const std::string body = encode_reply(b);
  std::ofstream file(dir / "reply", std::ios::binary);
  for (int i = 0; i < 2; ++i) {
    for (int shift = 0; shift < 32; shift += 8) file.put(static_cast<char>(body.size() >> shift));
    file << body;
  }
  file.close();
  Worker worker(script(dir, "twice", fmt::format("cat '{}'; exec sleep 100", dir / "reply")), {});
  CHECK(test::mentions(error_of(ErrorCode::compile_failed, [&] { worker.compile(sample(), arch("sm_90a"), 5); }).what(),
                       "nonsense"));
  CHECK(worker.pid() == -1);
}

TEST_CASE("a worker that ignores the end of its input is ended with its Worker", "[worker]") {
  ::setenv("TILEWRIGHT_TEST_LINGER", "1", 1);
  pid_t pid = -1;
  const double seconds = seconds_of([&] {
    Worker worker(paths::compile_worker(), compiler());
    Arch unknown = arch("sm_90a");
    unknown.name = "sm_1";
    error_of(ErrorCode::invalid_argument, [&] { worker.compile(sample(), unknown); });
    pid = worker.pid();
    CHECK(runs(pid));
  });
  ::unsetenv("TILEWRIGHT_TEST_LINGER");
  CHECK(seconds < 5);
  CHECK_FALSE(runs(pid));
}

TEST_CASE("a worker does not outlive its parent, however that dies", "[worker]") {
  test::TempDir dir;
  const std::string sleeper = script(dir, "sleeper", "exec sleep 100");
  int from_parent[2];
  REQUIRE(::pipe(from_parent) == 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const pid_t worker = start_child(sleeper, "compile-worker", from_parent[0]);
    if (::write(from_parent[1], &worker, sizeof worker) != sizeof worker) ::_exit(1);
    for (;;) ::pause();
  }
  pid_t worker = -1;
  REQUIRE(::read(from_parent[0], &worker, sizeof worker) == sizeof worker);
  CHECK(runs(worker));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  for (int i = 0; i < 100 && runs(worker); ++i) ::usleep(50000);
  CHECK_FALSE(runs(worker));
  for (const int fd : from_parent) ::close(fd);
}

TEST_CASE("a prewarm whose workers die fails those jobs and no more", "[worker]") {
  ::setenv("TILEWRIGHT_TEST_DIE", "1", 1);
  Engine engine(test::options(""));
  PrewarmPolicy policy;
  policy.top = 1;
  policy.jobs = 3;
  policy.every_bucket = false;
  policy.worker = paths::compile_worker();
  Problem problem = Problem::parse("gemm x=f32 w=f32 y=f32 m=1 n=64 k=64");
  const Arch* targets[] = {&arch("sm_90a")};
  PrewarmReport r = engine.prewarm(std::span(&problem, 1), targets, policy);
  ::unsetenv("TILEWRIGHT_TEST_DIE");
  CHECK(r.compiled == 0);
  CHECK(r.failed > 0);
  CHECK(static_cast<int>(r.failures.size()) == r.failed);
  r = engine.prewarm(std::span(&problem, 1), targets, policy);
  CHECK(r.failed == 0);
  CHECK(r.compiled > 0);
  CHECK(static_cast<int>(r.compile_seconds.size()) == r.compiled);
}
