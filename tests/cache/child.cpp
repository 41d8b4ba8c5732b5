// SPDX-License-Identifier: Apache-2.0
#include "child.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>

#include "support/catch.h"

extern char** environ;

namespace child {
namespace {

std::map<std::string, int (*)(const Arguments&)>& works() {
  static std::map<std::string, int (*)(const Arguments&)> all;
  return all;
}

constexpr char kSeparator = '\x1f';

}  // namespace

Work::Work(const char* name, int (*run)(const Arguments& arguments)) { works()[name] = run; }

bool is_root() { return geteuid() == 0; }

pid_t start(const std::string& name, const Arguments& arguments, unsigned uid) {
  std::string text = "TILEWRIGHT_TEST_CHILD=" + name;
  for (const auto& argument : arguments) text += kSeparator + argument;
  std::string user = "TILEWRIGHT_TEST_UID=" + std::to_string(uid);
  std::vector<char*> environment = {text.data(), user.data()};
  for (char** e = environ; *e; ++e) environment.push_back(*e);
  environment.push_back(nullptr);
  char self[] = "/proc/self/exe", tag[] = "[.child]";
  char* argv[] = {self, tag, nullptr};
  pid_t pid = -1;
  if (posix_spawn(&pid, self, nullptr, nullptr, argv, environment.data()) != 0) throw std::runtime_error("spawn");
  return pid;
}

int wait(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int run(const std::string& name, const Arguments& arguments, unsigned uid) { return wait(start(name, arguments, uid)); }

}  // namespace child

TEST_CASE("work in a child process", "[.child]") {
  const char* text = std::getenv("TILEWRIGHT_TEST_CHILD");
  if (text == nullptr) return;
  child::Arguments words(1);
  for (; *text; ++text) *text == child::kSeparator ? words.emplace_back() : (words.back() += *text, words.back());
  const unsigned uid = static_cast<unsigned>(std::atoi(std::getenv("TILEWRIGHT_TEST_UID")));
  if (uid != 0 && (setgid(uid) != 0 || setuid(uid) != 0)) _exit(99);
  const auto work = child::works().find(words[0]);
  if (work == child::works().end()) _exit(98);
  // exit, not return: the result is the exit code, and destructors of statics (sanitizer reports) still run.
  std::exit(work->second({words.begin() + 1, words.end()}));
}
