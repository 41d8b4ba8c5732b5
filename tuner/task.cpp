// SPDX-License-Identifier: Apache-2.0
#include "tuner/task.h"

#include <cmath>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include <tilewright/args.h>
#include <tilewright/error.h>
#include <tilewright/family.h>
#include <tilewright/pack.h>

#include "templates/families.h"
#include "templates/fast_path.h"
#include "templates/specialize.h"
#include "tuner/fill.h"

namespace tilewright::tuner {
namespace {

// The oracle accumulates in fp64 on CUDA cores: about 1 T multiply-adds/s on an H200. 6.4e10 keep it below 0.3 s with
// the operands' decoding, and leave 129 rows of a 57344 x 8192 matrix: more than one tile of rows.
constexpr double kMostVerifyMacs = 6.4e10;

std::int64_t verify_rows_of(std::int64_t rows, double macs_per_row) {
  if (rows <= 16) return rows;
  // Each is one more than full tiles of some size, which is where row guards go wrong.
  for (std::int64_t r : {257, 129, 65, 33, 17})
    if (r <= rows && static_cast<double>(r) * macs_per_row <= kMostVerifyMacs) return r;
  return std::min<std::int64_t>(rows, 17);
}

// Adds the streams of one matrix and remembers which buffer holds which.
struct Slots {
  int data = -1, scales = -1, global = -1;
};

Slots add_matrix(Task& task, const std::string& name, const Content& content, bool follows_rows, bool output) {
  Slots slots;
  auto streams = content.format.info().streams;
  for (int i = 0; i < static_cast<int>(streams.size()); ++i) {
    const StreamSpec& s = streams[static_cast<std::size_t>(i)];
    Buffer b;
    b.name = name + "." + s.name;
    b.bytes = static_cast<std::size_t>(content.format.stream_bytes(i, content.rows, content.cols));
    b.output = output && s.scope != Scope::tensor;  // a global scale is an input of every kernel
    if (follows_rows && s.scope != Scope::tensor && s.rows == 1)
      b.row_bytes = static_cast<std::size_t>(content.format.stream_bytes(i, 1, content.cols));
    b.fill = [content, i](std::span<std::byte> bytes, std::uint64_t seed) { fill_stream(content, i, seed, bytes); };
    int index = static_cast<int>(task.buffers.size());
    std::string_view stream = s.name;
    (stream == "data" ? slots.data : stream == "scales" ? slots.scales : slots.global) = index;
    task.buffers.push_back(std::move(b));
  }
  return slots;
}

Slots add_packed(Task& task, const std::string& matrix, const Gemm& g, float deviation, bool output) {
  Slots slots;
  for (const char* stream : {"data", "scales", "global"}) {
    Buffer b;
    b.name = fmt::format("{}.{}", matrix, stream);
    b.output = output;
    b.bytes = static_cast<std::size_t>(packed_bytes(g, stream));
    if (b.bytes == 0) continue;
    b.fill = [g, deviation, stream](std::span<std::byte> bytes, std::uint64_t seed) {
      fill_packed(g, deviation, stream, seed, bytes);
    };
    const std::string_view name = stream;
    (name == "data"     ? slots.data
     : name == "scales" ? slots.scales
                        : slots.global) = static_cast<int>(task.buffers.size());
    task.buffers.push_back(std::move(b));
  }
  return slots;
}

void* at(std::span<void* const> pointers, int slot) { return slot < 0 ? nullptr : pointers[slot]; }

Operand operand(std::span<void* const> p, const Slots& s) {
  return {at(p, s.data), at(p, s.scales), static_cast<const float*>(at(p, s.global))};
}

template <class Args>
std::vector<std::byte> bytes_of(const Args& args) {
  std::vector<std::byte> bytes(sizeof args);
  std::memcpy(bytes.data(), &args, sizeof args);
  return bytes;
}

Candidate oracle_candidate(const Problem& problem, const Arch& arch) {
  const Family& reference = *families(problem.op()).back();
  auto all = reference.candidates(problem, arch);
  if (all.empty())
    throw Error(ErrorCode::unsupported, "problem", problem.text(),
                "no reference kernel: " + reference.why_not(problem, arch));
  Candidate c = all.front();
  if (problem.op() != "gemm") return c;
  for (auto& [knob, value] : c.knobs)
    if (knob == "oracle") {
      value = 1;
      return c;
    }
  c.knobs.emplace_back("oracle", 1);
  return c;
}

// Judges y against what the reference kernel wrote: rows * n values, then rows * n largest permitted errors.
std::string compare_gemm(Format y, std::int64_t n, std::span<const std::byte> got, std::span<const std::byte> oracle,
                         std::int64_t rows, double& worst) {
  std::size_t cells = static_cast<std::size_t>(rows * n);
  if (oracle.size() < 2 * cells * sizeof(float)) return "the reference wrote too little to judge by";
  const std::byte* values = oracle.data();
  const std::byte* bounds = values + cells * sizeof(float);
  std::vector<float> row(static_cast<std::size_t>(n)), value(row.size()), bound(row.size());
  std::size_t row_bytes = static_cast<std::size_t>(y.stream_bytes(0, 1, n));
  worst = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    Operand from;
    from.data = got.data() + static_cast<std::size_t>(r) * row_bytes;
    y.info().decode(from, 1, n, row.data());
    std::memcpy(value.data(), values + static_cast<std::size_t>(r * n) * sizeof(float), row.size() * sizeof(float));
    std::memcpy(bound.data(), bounds + static_cast<std::size_t>(r * n) * sizeof(float), row.size() * sizeof(float));
    for (std::int64_t c = 0; c < n; ++c) {
      float g = row[c], v = value[c], b = bound[c];
      if (!std::isfinite(v)) {
        // An overflow of the output format is right where the exact value overflows too; NaN only where it is NaN.
        if (std::isnan(v) ? std::isnan(g) : g == v) continue;
        return fmt::format("y[{},{}] = {}, expected {}", r, c, g, v);
      }
      float error = std::fabs(g - v);
      if (std::isinf(g)) {  // right if the bound lets the value round to it
        float edge = v + std::copysign(b, g);
        std::byte code[4];
        y.info().encode(&edge, 1, 1, {code, nullptr, nullptr}, 0);
        y.info().decode({code, nullptr, nullptr}, 1, 1, &edge);
        if (edge == g) continue;
      }
      if (!(error <= b)) return fmt::format("y[{},{}] = {}, expected {} +- {}", r, c, g, v, b);
      if (b > 0) worst = std::max(worst, static_cast<double>(error) / b);
    }
  }
  return {};
}

// Casts are exact: every byte counts.
std::string compare_exact(const std::vector<std::pair<std::string, std::size_t>>& outputs,
                          std::span<const std::byte> got, std::span<const std::byte> oracle, std::int64_t rows) {
  std::size_t at = 0;
  for (auto& [name, row_bytes] : outputs) {
    std::size_t bytes = row_bytes * static_cast<std::size_t>(rows);
    for (std::size_t i = at; i < at + bytes; ++i)
      if (i >= got.size() || i >= oracle.size() || got[i] != oracle[i])
        return fmt::format("{} row {} byte {} = {:#04x}, expected {:#04x}", name, (i - at) / row_bytes,
                           (i - at) % row_bytes, i < got.size() ? int(got[i]) : -1,
                           i < oracle.size() ? int(oracle[i]) : -1);
    at += bytes;
  }
  return {};
}

// Integers without a scale are zero where values are small, fp8 is subnormal.
float least_deviation(Format f, float wanted) {
  if (f.info().block > 1 || f.info().streams.size() > 1) return wanted;
  const Element e = fast_path(f).element;
  return std::max(wanted, e == Element::i8 || e == Element::i32 ? 16.0f : e == Element::e4m3 ? 0.125f : 0.0f);
}

void describe_gemm(Task& task, const Gemm& g) {
  // Results near one: neither f16 overflow nor a sum below the output's resolution; of what has no scale, as many of
  // its codes as that allows.
  Slots x = add_matrix(
      task, "x", {g.x_stored(), g.m, g.k, least_deviation(g.x_stored(), 1.0f), g.global == Global::div}, true, false);
  const float deviation = least_deviation(g.w, 1.0f / std::sqrt(static_cast<float>(g.k)));
  Slots w = g.packing == Packing::none
                ? add_matrix(task, "w", {g.w, g.n, g.k, deviation, g.global == Global::div}, false, false)
                : add_packed(task, "w", g, deviation, false);
  Slots bias;
  if (g.bias) bias = add_matrix(task, "bias", {*g.bias, 1, g.n, least_deviation(*g.bias, 1.0f), false}, false, false);
  Slots c;
  if (g.c) c = add_matrix(task, "c", {*g.c, g.m, g.n, 1.0f, false}, true, false);
  Slots y = add_matrix(task, "y", {g.y, g.m, g.n, 1.0f, false}, true, true);
  int workspace = -1;
  if (g.workspace) {
    workspace = static_cast<int>(task.buffers.size());
    task.buffers.push_back(
        {.name = "workspace", .bytes = static_cast<std::size_t>(g.workspace), .fill = {}, .scratch = true});
  }
  task.arguments = [=](std::span<void* const> p, std::int64_t rows) {
    GemmArgs args;
    args.c = at(p, c.data);
    args.x = operand(p, x);
    args.w = operand(p, w);
    args.bias = at(p, bias.data);
    args.y = at(p, y.data);
    args.m = rows;
    args.workspace = at(p, workspace);
    return bytes_of(args);
  };
  task.verify_rows = verify_rows_of(g.m, static_cast<double>(g.n) * static_cast<double>(g.k));
  std::size_t element = static_cast<std::size_t>(g.y.stream_bytes(0, 1, g.y.block())) / g.y.block();
  task.oracle_scale = (2 * sizeof(float) + element - 1) / std::max<std::size_t>(1, element);
  auto worst = std::make_shared<double>(0);
  task.compare = [y = g.y, n = g.n, worst](std::span<const std::byte> got, std::span<const std::byte> oracle,
                                           std::span<const std::vector<std::byte>>,
                                           std::int64_t rows) { return compare_gemm(y, n, got, oracle, rows, *worst); };
  task.worst_error = [worst] { return *worst; };
}

void describe_cast(Task& task, const Cast& c) {
  Slots x = add_matrix(task, "x", {c.x, c.rows, c.cols, 1.0f, false}, true, false);
  Slots y = add_matrix(task, "y", {c.y, c.rows, c.cols, 1.0f, false}, true, true);
  task.arguments = [=](std::span<void* const> p, std::int64_t rows) {
    CastArgs args;
    args.x = operand(p, x);
    args.y = {at(p, y.data), at(p, y.scales), static_cast<float*>(at(p, y.global))};
    args.rows = rows;
    return bytes_of(args);
  };
  task.verify_rows = verify_rows_of(c.rows, static_cast<double>(c.cols));
  std::vector<std::pair<std::string, std::size_t>> outputs;
  for (const Buffer& b : task.buffers)
    if (b.output) outputs.emplace_back(b.name, b.row_bytes);
  task.compare = [outputs](std::span<const std::byte> got, std::span<const std::byte> oracle,
                           std::span<const std::vector<std::byte>>,
                           std::int64_t rows) { return compare_exact(outputs, got, oracle, rows); };
}

// Reordering is exact too, and the host's is the judge: it needs no kernel, which could be wrong in the same way.
void describe_pack(Task& task, const Pack& p) {
  Gemm g{.x = p.x, .w = p.w, .y = p.x, .bias = {}};
  g.n = p.n, g.k = p.k, g.packing = Packing::tiles;
  const float deviation = 1.0f / std::sqrt(static_cast<float>(p.k));
  const Slots w = add_matrix(task, "w", {p.w, p.n, p.k, deviation, false}, false, p.inverse);
  const Slots tiles = add_packed(task, "tiles", g, deviation, !p.inverse);
  for (const int slot : {w.global, tiles.global})
    if (slot >= 0) task.buffers[static_cast<std::size_t>(slot)].output = (slot == w.global) == p.inverse;
  const auto operand_of = [](std::span<void* const> at_slots, const Slots& s) {
    return MutableOperand{at(at_slots, s.data), at(at_slots, s.scales), static_cast<float*>(at(at_slots, s.global))};
  };
  task.arguments = [=](std::span<void* const> pointers, std::int64_t) {
    return bytes_of(PackArgs{operand_of(pointers, w), operand_of(pointers, tiles)});
  };
  task.oracle = nullptr;
  task.verify_rows = p.n;
  std::vector<std::pair<std::string, std::size_t>> outputs;
  std::vector<bool> is_output;
  for (const Buffer& b : task.buffers) {
    is_output.push_back(b.output);
    if (b.output) outputs.emplace_back(b.name, b.bytes);
  }
  task.compare = [=, inverse = p.inverse](std::span<const std::byte> got, std::span<const std::byte>,
                                          std::span<const std::vector<std::byte>> inputs, std::int64_t) {
    std::vector<std::byte> expected(got.size());
    std::vector<void*> pointers;
    std::size_t at_output = 0, input = 0, output = 0;
    for (const bool out : is_output) {
      pointers.push_back(out ? expected.data() + at_output : const_cast<std::byte*>(inputs[input++].data()));
      if (out) at_output += outputs[output++].second;
    }
    if (inverse)
      unpack_weights(g, operand_of(pointers, tiles), operand_of(pointers, w));
    else
      pack_weights(g, operand_of(pointers, w), operand_of(pointers, tiles));
    return compare_exact(outputs, got, expected, 1);
  };
}

}  // namespace

Problem bucketed(const Problem& problem) { return problem.with_rows(kBuckets[bucket_index(problem.rows())]); }

Source source_of(const Problem& problem, const Arch& arch, const Candidate& candidate, const std::string& templates) {
  Source source = family(problem.op(), candidate.family).source(problem, arch, candidate);
  return templates.empty() ? source : with_templates_from(std::move(source), templates);
}

Task make_task(const Problem& asked, const Arch& arch, std::vector<Candidate> candidates,
               const std::string& templates) {
  Problem problem = bucketed(asked);
  Task task;
  task.key = problem.text();
  task.rows = problem.rows();
  task.cols = problem.cols();
  task.candidates = std::move(candidates);
  task.contract = contract_for(problem);
  task.min_bytes = problem.min_bytes();
  task.ops = problem.ops();
  const Arch* target = &arch;
  task.source = [problem, target, templates](const Candidate& c) { return source_of(problem, *target, c, templates); };
  task.oracle = [problem, target, templates] {
    return source_of(problem, *target, oracle_candidate(problem, *target), templates);
  };
  if (const Gemm* g = problem.gemm()) describe_gemm(task, *g);
  if (const Cast* c = problem.cast()) describe_cast(task, *c);
  if (const Pack* p = problem.pack()) describe_pack(task, *p);
  return task;
}

}  // namespace tilewright::tuner
