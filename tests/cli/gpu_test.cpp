// SPDX-License-Identifier: Apache-2.0
// The commands that need a GPU, in this process: on the driver double, with kernels that are computed on the host.
#include <fcntl.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "cli/command.h"
#include "cli/errors.h"
#include "cli/tool.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace cli_tool;
using test::mentions;
using Json = cli_tool::Json;

namespace {

// Standard output and error, in files while this lives.
class Redirected {
 public:
  Redirected(const std::string& out, const std::string& err) : out_(to(1, out)), err_(to(2, err)) {}
  ~Redirected() {
    flush();
    for (const auto& [fd, kept] : {std::pair{1, out_}, std::pair{2, err_}}) ::dup2(kept, fd), ::close(kept);
  }

 private:
  static void flush() { std::cout.flush(), std::fflush(stdout), std::fflush(stderr); }
  static int to(int fd, const std::string& file) {
    flush();
    const int kept = ::dup(fd), opened = ::open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ::dup2(opened, fd);
    ::close(opened);
    return kept;
  }
  int out_, err_;
};

// As main() runs it.
Ran on_double(std::vector<std::string> words) {
  const std::string out = scratch() / "out", err = scratch() / "err", cache = scratch() / "gpu.db";
  words.insert(words.begin(), "tilewright");
  words.insert(words.end(), {"--cache", cache});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  const int count = static_cast<int>(arguments.size());
  Ran ran;
  {
    const Redirected redirected(out, err);
    ::setenv("TILEWRIGHT_DRIVER", paths::fake_cuda().c_str(), 1);
    cli::Context context;
    CLI::App app;
    context.app = &app;
    cli::add_run(context);
    cli::add_tune(context);
    cli::add_plot(context);
    try {
      app.parse(count, arguments.data());
      ran.code = context.action();
    } catch (const std::exception& e) {
      ran.code = cli::report(e, cli::wants_json(count, arguments.data()));
    }
    ::unsetenv("TILEWRIGHT_DRIVER");
  }
  ran.out = slurp(out), ran.err = slurp(err);
  return ran;
}

}  // namespace

TEST_CASE("cli: run on a GPU gives 0 for a right result and 2 for a wrong one") {
  test::FakeGpu gpu;
  gpu.serve(test::small(), test::target());
  const Ran right = on_double({"run", "--json", test::small().text()});
  INFO(right.err);
  CHECK(right.code == cli::kOk);
  CHECK(right.json()["executed_on"] == "gpu");
  CHECK(right.json()["verified"] == true);

  gpu.all_bad = true;
  const Ran wrong = on_double({"run", "--json", test::small().text()});
  CHECK(wrong.code == cli::kWrong);
  CHECK(wrong.json()["verified"] == false);
  CHECK(mentions(wrong.json()["wrong"], " = 10000, expected "));
  const Ran text = on_double({"run", test::small().text()});
  CHECK(text.code == cli::kWrong);
  CHECK(mentions(text.out, "result   WRONG: y["));
  CHECK_FALSE(mentions(text.out, "verified"));
}

TEST_CASE("cli: run gives 2 where a kernel writes nothing") {
  const Ran ran = shell("TILEWRIGHT_DRIVER='" + paths::fake_cuda() + "' " + tool_path() + "run --json '" +
                        test::small().text() + "'" + cache_flag("gpu.db"));
  CHECK(ran.code == cli::kWrong);
  CHECK(ran.json()["executed_on"] == "gpu");
  CHECK(mentions(ran.json()["wrong"], "nan, expected "));
}

TEST_CASE("cli: tune recommends what plan does") {
  test::FakeGpu gpu;
  gpu.serve(test::small(), test::target());
  const Ran ran = on_double({"tune", "--json", "--max", "2", test::small().text()});
  INFO(ran.err);
  CHECK(ran.code == cli::kOk);
  const Json report = ran.json()["reports"][0];
  CHECK(report["measured"] > 0);
  CHECK(report["warning"].is_null());
  REQUIRE(report["advice"].is_object());
  CHECK(report["advice"]["fields"][0]["field"] == "pack=tiles");
  CHECK(mentions(report["advice"]["fields"][0]["how"], "Engine::pack()"));
  CHECK(report["advice"] == tool("plan --json --arch sm_90a '" + test::small().text() + "'").json()["advice"]);

  const Ran text = on_double({"tune", "--max", "2", test::small().text()});
  CHECK(text.code == cli::kOk);
  CHECK(mentions(text.out, "These fields allow faster kernels:\n  pack=tiles"));
  CHECK(mentions(text.out, "measure with tune"));
}

TEST_CASE("cli: plot draws what tune --all-m stored") {
  test::FakeGpu gpu;
  gpu.serve(test::small(), test::target());
  gpu.gemm_duration = [](const FakeLaunch&, std::int64_t rows) { return 10.0 + static_cast<double>(rows); };
  const std::string problem = "gemm x=f32 w=q8_0 y=f32 m=1 n=64 k=256";
  const Ran none = on_double({"plot", problem});
  CHECK(none.code == cli::kUserError);
  CHECK(none.out.empty());
  CHECK(mentions(none.err, "PROBLEM must have a stored choice"));
  CHECK(mentions(none.err, "tilewright tune --all-m \"" + problem + "\""));

  const Ran tuned = on_double({"tune", "--all-m", "--binaries", "3", "--json", test::small().text()});
  INFO(tuned.err);
  REQUIRE(tuned.code == cli::kOk);
  const Json stored = tuned.json()["reports"][0]["ranges"];
  ::setenv("TILEWRIGHT_PYTHON", echoing_python().c_str(), 1);
  const Ran drawn = on_double({"plot", test::small().text()});
  INFO(drawn.err);
  REQUIRE(drawn.code == cli::kOk);
  REQUIRE(drawn.out.starts_with("svg\n"));
  std::size_t ranges = 0;
  for (const Json& range : stored) ranges += range["first"] <= kMostStepRows;
  const Json data = Json::parse(drawn.out.substr(4));
  CHECK(data["ranges"].size() == ranges);
  for (std::size_t i = 0; i < ranges; ++i) CHECK(data["ranges"][i]["candidate"] == stored[i]["candidate"]);
  CHECK(data["rivals"].empty());
  CHECK(data["tbps"] == test::target().typical_tbps);

  // The same as numbers, and in a file.
  const std::string file = scratch() / "plot.svg";
  const Ran numbers = on_double({"plot", "--json", "-o", file, test::small().text()});
  REQUIRE(numbers.code == cli::kOk);
  CHECK(numbers.json() == data);
  CHECK(drawn.out == slurp(file) + "\n");
  const Json first = data["roofline"].front(), last = data["roofline"].back();
  CHECK(first["m"] == 1);
  CHECK(last["m"] == kMostStepRows);
  const double least = test::small().with_rows(1).min_bytes() / test::target().typical_tbps / 1e6;
  CHECK(std::abs(double(first["microseconds"]) - least) <= 1e-9 * least);
  CHECK(on_double({"plot", "-o", "/nonexistent/plot.svg", test::small().text()}).code == cli::kUserError);
  ::unsetenv("TILEWRIGHT_PYTHON");
}

TEST_CASE("cli: plot draws rivals of the same problem, and says what is wrong with their file") {
  test::FakeGpu gpu;
  gpu.serve(test::small(), test::target());
  REQUIRE(on_double({"tune", "--all-m", "--binaries", "3", test::small().text()}).code == cli::kOk);
  const std::string file = scratch() / "rivals.json";
  const auto plot = [&](const std::string& text) {
    std::ofstream(file) << text;
    return on_double({"plot", "--json", "--rivals", file, test::small().text()});
  };
  const auto results = [](const std::string& rows) { return "{\"results\": {\"gemm\": [" + rows + "]}}"; };
  const std::string problem = "{\"problem\": \"" + test::small().with_rows(7).text() + "\"";
  const std::string other = "{\"problem\": \"gemm x=f32 w=q8_0 y=f32 m=1 n=64 k=256\"";
  const Ran drawn = plot(results("{\"label\": \"broken\"}, " + other + "}, " + problem +
                                 ", \"points\": [{\"m\": 1, \"us\": 12, \"rival_us\": 13, \"rival\": \"theirs\"}, "
                                 "{\"m\": 64, \"us\": 70}, {\"m\": 9000, \"us\": 70, \"rival_us\": 80}]}"));
  INFO(drawn.out << drawn.err);
  REQUIRE(drawn.code == cli::kOk);
  const Json data = drawn.json();
  CHECK(data["measured"].size() == 2);
  REQUIRE(data["rivals"].size() == 1);
  CHECK(data["rivals"][0] == Json{{"m", 1}, {"microseconds", 13.0}, {"name", "theirs"}});

  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"{", "tilewright_bench gemm --every-m"},
           {"{\"results\": {\"cast\": []}}", "tilewright_bench gemm --every-m"},
           {results(""), "the file has none of any"},
           {results(other + "}"), "the file has gemm x=f32 w=q8_0 y=f32 m=1 n=64 k=256"},
           {results(problem + "}"), "a list \\\"points\\\""},
           {results(problem + ", \"points\": [{\"m\": 0, \"us\": 1}]}"), "positive numbers"},
           {results(problem + ", \"points\": [7]}"), "positive numbers"}}) {
    const Ran refused = plot(text);
    INFO(text << "\n" << refused.out);
    CHECK(refused.code == cli::kUserError);
    CHECK(mentions(refused.out, "--rivals"));
    CHECK(mentions(refused.out, part));
  }
  const Ran missing = on_double({"plot", "--rivals", "/nonexistent/rivals.json", test::small().text()});
  CHECK(missing.code == cli::kUserError);
  CHECK(mentions(missing.err, "does not exist"));
}
