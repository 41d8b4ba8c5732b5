// SPDX-License-Identifier: Apache-2.0
// Nodes that the host builds and runs, and the problems that say what is right.
#pragma once

#include <tilewright/problem.h>
#include <tilewright/task.h>

#include <functional>
#include <string>
#include <vector>

#include "hosts/tensorrt/host/standins.h"

namespace tilewright::tensorrt::host {

struct Input {
  std::string buffer;  // of the problem's Task: "w.data"
  DataType type;
  Shape shape;              // -1: what a launch varies
  bool transposed = false;  // the buffer [n, k] is passed as [k, n]: `shape`, of bytes
};

struct Case {
  std::string name;
  std::string plugin;
  // What a launch of `m` rows (or images) computes, with its weights in the format's order.
  std::function<Problem(std::int64_t m)> problem;
  std::vector<OwnedFields::Field> fields = {};
  // Fields whose values are bytes of a buffer.
  struct Constant {
    std::string field;
    Input from;
  };
  std::vector<Constant> constants = {};
  std::vector<Input> inputs = {};
  DataType output_type = DataType::kBF16;
  Shape output = {};
  std::int64_t most = 512;     // of what varies, that is tried
  std::int64_t rows_per = 1;   // rows of the problem for each
  bool times_tactics = false;  // launches try all tactics, which takes longer
};

std::vector<Case> all_cases(const std::string& target);

// The buffers of a problem, filled. Weights are those of every m.
struct Filled {
  Task task;
  std::vector<std::vector<std::byte>> buffers;
  bool has(const std::string& name) const;
  std::vector<std::byte>& of(const std::string& name);  // throws std::runtime_error
  std::vector<std::byte> bytes(const Input& input);     // as the plugin takes them
};
Filled filled(const Problem& problem, std::uint64_t seed);

}  // namespace tilewright::tensorrt::host
