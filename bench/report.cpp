// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>

#include "tree_hash.h"

namespace tilewright::bench {

Json environment(const Device* device, const Options& options) {
  Json e;
  const char* commit = std::getenv("TILEWRIGHT_COMMIT");
  e["commit"] = commit ? commit : "";
  e["tree_hash"] = TILEWRIGHT_TREE_HASH;
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  e["date"] = date;
  const bool cpu = device && device->arch().cpu;
  try {
    const CompileOptions compile = CompileOptions::of(options);
    e["compiler"] = cpu ? compiler_info(compile, device->arch()).version : compiler_version(compile);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::library_missing) throw;
    e["compiler"] = "";
  }
  if (device) {
    e["device"] = device->name();
    e[cpu ? "threads" : "sms"] = device->sms();
    e["driver"] = device->driver_version();
    e["arch"] = device->arch().name;
  }
  return e;
}

void write(const std::string& path, const Json& environment, const Json& results) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << Json{{"environment", environment}, {"results", results}}.dump(1) << "\n";
  if (!file) throw Error(ErrorCode::io, "out", path, "must be a writable file");
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string out;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) out += fmt::format("{:<{}}  ", row[i], widths[i]);
    while (!out.empty() && out.back() == ' ') out.pop_back();
    out += "\n";
  }
  return out;
}

std::vector<std::byte> probe_arguments(void* out, const void* in, std::size_t in_bytes) {
  struct {
    void* out;
    const void* in;
    long long n;
  } args{out, in, static_cast<long long>(in_bytes / 16)};
  std::vector<std::byte> bytes(sizeof(args));
  std::memcpy(bytes.data(), &args, sizeof(args));
  return bytes;
}

Task probe_task(const Probe& probe) {
  Task task;
  task.key = "probe " + probe.name;
  task.rows = task.cols = task.verify_rows = 1;
  for (const auto& [blocks, threads] : probe.grids)
    task.candidates.push_back({probe.name, {{"blocks", blocks}, {"threads", threads}}});
  task.source = [probe](const Candidate& c) {
    Source s;
    s.name = probe.name;
    s.text = probe.text;
    s.entry = "probe";
    s.plan.x.fixed = static_cast<std::uint32_t>(c.at("blocks"));
    s.plan.threads = static_cast<std::uint32_t>(c.at("threads"));
    return s;
  };
  Buffer in, out;
  out.name = "out", out.bytes = probe.out_bytes, out.output = true;
  in.name = "in", in.bytes = probe.in_bytes;
  in.fill = [](std::span<std::byte> bytes, std::uint64_t seed) {
    std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      std::memcpy(&bytes[i], &state, 8);
    }
  };
  task.buffers = {in, out};
  task.arguments = [bytes = probe.in_bytes](std::span<void* const> p, std::int64_t) {
    return probe_arguments(p[1], p[0], bytes);
  };
  task.compare = [](auto, auto, auto, std::int64_t) { return std::string(); };
  task.min_bytes = static_cast<double>(probe.in_bytes + probe.out_bytes);
  return task;
}

namespace {

constexpr const char* kArgs = "struct Args { uint4* out; const uint4* in; long long n; };\n";

FastestCopy fastest(Engine& engine, const Device& device, const Probe& probe, double bytes) {
  TunePolicy policy;
  policy.exhaustive = true;
  policy.retune = true;
  const TuneReport report = engine.tune(probe_task(probe), device, policy);
  FastestCopy best;
  for (const Outcome& o : report.outcomes)
    if (o.kind == OutcomeKind::measured && o.microseconds > 0 && bytes / o.microseconds * 1e-6 > best.tbps)
      best = {bytes / o.microseconds * 1e-6, o.candidate};
  return best;
}

}  // namespace

double read_ceiling(Engine& engine, const Device& device) {
  Probe probe;
  probe.name = "read";
  // Eight independent 16-byte loads per thread before the first use; each thread leaves one word, so that nothing is
  // dropped.
  probe.text = std::string(kArgs) +
               "extern \"C\" __global__ void probe(const __grid_constant__ Args a) {\n"
               "  const long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = (long long)gridDim.x * "
               "blockDim.x;\n"
               "  unsigned sum = 0;\n"
               "  for (long long i = t; i < a.n; i += 8 * step) {\n"
               "    uint4 v[8];\n"
               "#pragma unroll\n"
               "    for (int j = 0; j < 8; ++j) v[j] = i + j * step < a.n ? __ldg(a.in + i + j * step) : make_uint4(0, "
               "0, 0, 0);\n"
               "#pragma unroll\n"
               "    for (int j = 0; j < 8; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;\n"
               "  }\n"
               "  ((unsigned*)a.out)[t] = sum;\n"
               "}\n";
  probe.in_bytes = 512ull << 20;
  for (int per_sm : {1, 2}) probe.grids.emplace_back(device.sms() * per_sm, 1024);
  probe.out_bytes = static_cast<std::size_t>(device.sms()) * 2 * 1024 * 4;
  return fastest(engine, device, probe, static_cast<double>(probe.in_bytes)).tbps;
}

Probe copy_probe(const Device& device, std::size_t bytes) {
  Probe probe;
  probe.name = "copy";
  probe.text = std::string(kArgs) +
               "extern \"C\" __global__ void probe(const __grid_constant__ Args a) {\n"
               "  const long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = (long long)gridDim.x * "
               "blockDim.x;\n"
               "  for (long long i = t; i < a.n; i += 4 * step) {\n"
               "    uint4 v[4];\n"
               "#pragma unroll\n"
               "    for (int j = 0; j < 4; ++j) if (i + j * step < a.n) v[j] = __ldg(a.in + i + j * step);\n"
               "#pragma unroll\n"
               "    for (int j = 0; j < 4; ++j) if (i + j * step < a.n) a.out[i + j * step] = v[j];\n"
               "  }\n"
               "}\n";
  probe.in_bytes = probe.out_bytes = bytes;
  for (int per_sm : {1, 2, 4, 16}) probe.grids.emplace_back(device.sms() * per_sm, 512);
  return probe;
}

FastestCopy fastest_copy(Engine& engine, const Device& device) {
  const Probe probe = copy_probe(device, 256ull << 20);
  return fastest(engine, device, probe, 2.0 * static_cast<double>(probe.in_bytes));
}

double copy_ceiling(Engine& engine, const Device& device) { return fastest_copy(engine, device).tbps; }

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

std::vector<std::string> split(const std::string& list, char at) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, at);) {
    const auto begin = part.find_first_not_of(' ');
    if (begin != part.npos) parts.push_back(part.substr(begin, part.find_last_not_of(' ') - begin + 1));
  }
  return parts;
}

}  // namespace tilewright::bench
