// SPDX-License-Identifier: Apache-2.0
// The commands that need a GPU, in this process: on the driver double, with kernels that are computed on the host.
#include <fcntl.h>

#include <cstdio>
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
