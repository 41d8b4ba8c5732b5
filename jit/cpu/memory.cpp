// SPDX-License-Identifier: Apache-2.0
#include "jit/cpu/memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace tilewright::jit::cpu {
namespace {

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (!(file >> value)) return {};  // absent, or "max"
  return value;
}

// The value behind a name in lines of "name value".
std::uint64_t named(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    std::uint64_t value = 0;
    if (words >> first >> value && first == name) return value;
  }
  return 0;
}

struct Files {
  const char *limit, *used, *cached;  // cached: in memory.stat, of files, which the system gives up when asked
};
constexpr Files kFirst = {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"};
constexpr Files kSecond = {"/memory.max", "/memory.current", "inactive_file"};

// The group and all that it is in: each has a limit of its own. A container may not see the folders above its own,
// which is then the mount itself.
void limit_by(HostMemory& memory, const std::string& mount, std::string group, const Files& files) {
  for (;; group.resize(group.rfind('/'))) {
    const std::string folder = mount + group;
    const auto limit = number_in(folder + files.limit), used = number_in(folder + files.used);
    if (limit && used) {
      const std::uint64_t taken = *used - std::min(*used, named(folder + "/memory.stat", files.cached));
      memory.total = std::min<std::uint64_t>(memory.total, *limit);
      memory.free = std::min<std::uint64_t>(memory.free, *limit - std::min(*limit, taken));
    }
    if (group.empty()) return;
  }
}

}  // namespace

HostMemory host_memory(const std::string& root) {
  const std::string info = root + "/proc/meminfo";
  HostMemory memory{named(info, "MemAvailable:") * 1024, named(info, "MemTotal:") * 1024};
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers == ",,")
      limit_by(memory, root + "/sys/fs/cgroup", group, kSecond);
    else if (controllers.find(",memory,") != controllers.npos)
      limit_by(memory, root + "/sys/fs/cgroup/memory", group, kFirst);
  }
  return memory;
}

}  // namespace tilewright::jit::cpu
