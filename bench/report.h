// SPDX-License-Identifier: Apache-2.0
// The environment that every result file records, and tables of text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <tilewright/tilewright.h>

namespace tilewright::bench {

using Json = nlohmann::ordered_json;

// Device, driver, compiler (empty: there is none), commit (TILEWRIGHT_COMMIT) and the hash of templates/, jit/ and
// tuner/ this was built from.
Json environment(const Device* device, const Options& options);

// Writes {"environment": ..., "results": ...}; an empty path writes nothing. Throws Error (io).
void write(const std::string& path, const Json& environment, const Json& results);

class Table {
 public:
  explicit Table(std::vector<std::string> heads) : rows_{std::move(heads)} {}
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Task of a hand-written kernel over plain buffers whose content does not matter; used for ceilings.
struct Probe {
  std::string name, text;  // entry: extern "C" __global__ void probe(uint4* out, const uint4* in, long long n)
  std::vector<std::pair<int, int>> grids;  // blocks, threads
  std::size_t in_bytes = 0, out_bytes = 0;
};
Task probe_task(const Probe& probe);
std::vector<std::byte> probe_arguments(void* out, const void* in, std::size_t in_bytes);

// Ceilings of this device in TB/s, measured now: reads with 16-byte loads, and copies (read + write).
double read_ceiling(Engine& engine, const Device& device);
double copy_ceiling(Engine& engine, const Device& device);

// What copy_ceiling() times, and its fastest candidate.
struct FastestCopy {
  double tbps = 0;
  Candidate candidate = {};
};
Probe copy_probe(const Device& device, std::size_t bytes);
FastestCopy fastest_copy(Engine& engine, const Device& device);

double median(std::vector<double> v);

// The parts of a list of the command line, without the spaces around them and without empty ones.
std::vector<std::string> split(const std::string& list, char at);

}  // namespace tilewright::bench
