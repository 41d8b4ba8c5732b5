// SPDX-License-Identifier: Apache-2.0
// Writes a kernel out: a few generated lines that include a template, name one instantiation and hold the host's plan
// against the device's. The headers are the embedded files of templates/ that the lines reach.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tilewright/format.h>
#include <tilewright/source.h>
#include <tilewright/task.h>

namespace tilewright {

struct Specialization {
  std::string name;                   // "gemm/mma"
  std::vector<std::string> includes;  // "operations/gemm/cuda/mma/kernel.cuh", "formats/q4_0.cuh"
  std::string prelude;                // lines between the includes and the plan: what they use and no file has
  std::string plan_type;              // "tw::gemm::Mma<...>": has kThreads, kSharedBytes, run(args, shape, maps...)
  std::string space;                  // "tw::gemm": has Args and Shape
  int blocks_per_sm = 1;              // launch bound
  std::vector<std::string> options;
  LaunchPlan plan;  // its tensor maps become parameters (tw::TensorMap of backends/cuda/sm90.cuh)
};

// What a generated source calls a format, and the file that has it: "tw::fmt::q4_0", "formats/q4_0.cuh".
std::string format_type(Format f);
std::string format_file(Format f);

// From the embedded files. Throws Error (io) if there is no such file.
Source specialize(const Specialization& s);

// The same as the only candidate of a task, for kernels that library code launches by steps: no problem, nothing to
// choose. Its launches have a block for each row.
Task kernel_task(const Specialization& s, std::size_t args_bytes);

// A file of templates/, as the build embedded it: a zero byte follows the data.
struct EmbeddedFile {
  const char* name;
  const unsigned char* data;
  std::size_t size;
  const char* sha256;  // of the data, in hex
  std::string_view text() const { return {reinterpret_cast<const char*>(data), size}; }
};
extern const EmbeddedFile kEmbedded[];
extern const std::size_t kEmbeddedCount;
const EmbeddedFile* embedded(std::string_view name);  // null if there is none

// The same source with its headers from a checkout's templates folder, for editing kernels without a rebuild. Throws
// Error (io).
Source with_templates_from(Source source, const std::string& root);

}  // namespace tilewright
