// SPDX-License-Identifier: Apache-2.0
// Reads from a cubin what the driver double needs, and makes the smallest cubin that it accepts.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace tilewright::test {

struct FakeFunctionInfo {
  std::vector<std::size_t> params;  // sizes in order
  int registers = 0, shared_bytes = 0;
};
struct FakeImageInfo {
  int sm = 0;  // 90
  std::map<std::string, FakeFunctionInfo> entries;
};
FakeImageInfo read_image(std::span<const std::byte> image);  // no entries if it is not whole

// A cubin of one kernel without code: enough for the double and for the library's own checks. `salt` makes two differ.
std::vector<std::byte> make_image(const std::string& entry, int sm, const std::vector<std::size_t>& params,
                                  unsigned salt = 0);

}  // namespace tilewright::test
