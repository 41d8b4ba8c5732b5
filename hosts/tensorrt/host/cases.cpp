// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/host/cases.h"

#include <tilewright/conv.h>
#include <tilewright/operation.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace tilewright::tensorrt::host {
namespace {

constexpr std::uint64_t kWeightSeed = 7;

std::function<Problem(std::int64_t)> gemm(const std::string& text) {
  return [problem = Problem::parse(text + " m=1")](std::int64_t m) { return problem.with_rows(m); };
}
std::function<Problem(std::int64_t)> conv(const std::string& text) {
  return [problem = Problem::parse(text + " n=1")](std::int64_t n) {
    Conv c = *problem.as<Conv>();
    c.n = n;
    return Problem(c);
  };
}

std::vector<OwnedFields::Field> problem_fields(const std::string& text, const std::string& target,
                                               const std::string& x_from = "") {
  std::vector<OwnedFields::Field> fields = {{"problem", text}, {"target", target}};
  if (!x_from.empty()) fields.push_back({"x_from", x_from});
  return fields;
}

Case w4a8(const std::string& name, const std::string& target, std::int64_t n, std::int64_t k) {
  Case c{name, "W4A8GemmPlugin",
         gemm("gemm x=e4m3_row x_from=bf16 w=nvfp4 y=bf16 global=mul alpha=0.5 n=" + std::to_string(n) +
              " k=" + std::to_string(k))};
  c.fields = {{"in_features", static_cast<std::int32_t>(k)},
              {"out_features", static_cast<std::int32_t>(n)},
              {"alpha", 0.5f},
              {"target", target}};
  c.inputs = {{"x.data", DataType::kBF16, {-1, k}}};
  c.output = {-1, n};
  return c;
}

std::vector<Input> w4a8_weights(std::int64_t n, std::int64_t k) {
  return {{"w.data", DataType::kINT8, {k / 2, n}, true}, {"w.scales", DataType::kFP8, {k / 16, n}, true}};
}

Case int4_with_bias(const std::string& target) {
  const std::string text = "gemm x=bf16 w=int4_g128 y=bf16 n=192 k=256 bias=bf16 act=gelu_tanh";
  Case c{"int4_g128, bias and gelu; weights are inputs", "TilewrightGemm", gemm(text), problem_fields(text, target)};
  c.inputs = {{"x.data", DataType::kBF16, {-1, 256}},
              {"w.data", DataType::kINT8, {192 * 128}},
              {"w.scales", DataType::kINT8, {192 * 2 * 2}},
              {"bias", DataType::kBF16, {192}}};
  c.output = {-1, 192};
  c.times_tactics = true;
  return c;
}

}  // namespace

std::vector<Case> all_cases(const std::string& target) {
  std::vector<Case> cases;
  {
    const std::string text = "gemm x=e4m3_row w=nvfp4 y=bf16 global=mul n=256 k=512";
    Case c{"nvfp4 by rows of e4m3; constant weights", "TilewrightGemm",
           gemm("gemm x=e4m3_row x_from=bf16 w=nvfp4 y=bf16 global=mul n=256 k=512"),
           problem_fields(text, target, "bf16")};
    c.constants = {{"w", {"w.data", DataType::kINT8, {256 * 256}}},
                   {"w_scales", {"w.scales", DataType::kINT8, {256 * 32}}},
                   {"w_global", {"w.global", DataType::kFLOAT, {1}}}};
    c.inputs = {{"x.data", DataType::kBF16, {2, -1, 512}}};
    c.output = {2, -1, 256};
    c.rows_per = 2;
    c.times_tactics = true;
    cases.push_back(std::move(c));
  }
  {
    const std::string text = "gemm x=e4m3_row w=e4m3_row y=f16 n=128 k=256";
    Case c{"e4m3 with scales, which the caller quantized", "TilewrightGemm", gemm(text), problem_fields(text, target)};
    c.constants = {{"w", {"w.data", DataType::kINT8, {128 * 256}}}, {"w_scales", {"w.scales", DataType::kINT8, {512}}}};
    c.inputs = {{"x.data", DataType::kFP8, {-1, 256}}, {"x.scales", DataType::kFLOAT, {-1, 1}}};
    c.output = {-1, 128};
    c.output_type = DataType::kHALF;
    cases.push_back(std::move(c));
  }
  cases.push_back(int4_with_bias(target));
  {
    const std::string text = "gemm x=q8_1 w=q4_0 y=f32 n=128 k=512";
    Case c{"q4_0 by q8_1; constant weights", "TilewrightGemm", gemm("gemm x=q8_1 x_from=f32 w=q4_0 y=f32 n=128 k=512"),
           problem_fields(text, target, "f32")};
    c.constants = {{"w", {"w.data", DataType::kINT8, {128 * 16 * 18}}}};
    c.inputs = {{"x.data", DataType::kFLOAT, {-1, 512}}};
    c.output = {-1, 128};
    c.output_type = DataType::kFLOAT;
    cases.push_back(std::move(c));
  }
  {
    Case c = w4a8("W4A8, weights are constants of the node", target, 256, 512);
    for (Input& input : w4a8_weights(256, 512))
      c.constants.push_back({input.buffer == "w.data" ? "weight_packed" : "weight_scale", input});
    cases.push_back(std::move(c));
  }
  for (const bool constant : {false, true}) {
    Case c = w4a8(constant ? "W4A8, weights are constant inputs" : "W4A8, weights are inputs that may change", target,
                  256, 512);
    for (Input& input : w4a8_weights(256, 512)) c.inputs.push_back(input);
    c.fields.push_back({"constant_weights", static_cast<std::int32_t>(constant)});
    cases.push_back(std::move(c));
  }
  {
    const std::string text =
        "conv x=bf16 w=bf16 y=bf16 c=32 in=12x10 k=64 kernel=3x3 pad=1 x_layout=ncdhw y_layout=ncdhw "
        "w_layout=kctrs";
    Case c{"convolution of any number of images", "TilewrightConv", conv(text), problem_fields(text + " n=1", target)};
    c.inputs = {{"x.data", DataType::kBF16, {-1, 32, 12, 10}}, {"w.data", DataType::kBF16, {64 * 32 * 9}}};
    c.output = {-1, 64, 12, 10};
    c.most = 4;
    cases.push_back(std::move(c));
  }
  return cases;
}

bool Filled::has(const std::string& name) const {
  return std::any_of(task.buffers.begin(), task.buffers.end(), [&](const Buffer& b) { return b.name == name; });
}

std::vector<std::byte>& Filled::of(const std::string& name) {
  std::string names;
  for (std::size_t i = 0; i < task.buffers.size(); ++i) {
    const std::string& own = task.buffers[i].name;
    if (own == name || own == name + ".data") return buffers[i];
    names += " " + own;
  }
  throw std::runtime_error("no buffer " + name + " among" + names);
}

std::vector<std::byte> Filled::bytes(const Input& input) {
  const std::vector<std::byte>& from = of(input.buffer);
  if (!input.transposed) return from;
  const auto rows = static_cast<std::size_t>(input.shape[1]), cols = static_cast<std::size_t>(input.shape[0]);
  std::vector<std::byte> to(rows * cols);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c) to[c * rows + r] = from[r * cols + c];
  return to;
}

Filled filled(const Problem& problem, std::uint64_t seed) {
  Filled filled;
  problem.operation().describe(problem, filled.task);
  for (const Buffer& buffer : filled.task.buffers) {
    std::vector<std::byte>& bytes = filled.buffers.emplace_back(buffer.bytes);
    const bool of_rows = buffer.name.starts_with("x") || buffer.name.starts_with("c");
    if (buffer.fill) buffer.fill(bytes, of_rows ? seed : kWeightSeed);
  }
  // W4A8's weights have no factor for the tensor; the others do not notice.
  for (std::size_t i = 0; i < filled.task.buffers.size(); ++i)
    if (const float one = 1; filled.task.buffers[i].name == "w.global")
      std::memcpy(filled.buffers[i].data(), &one, sizeof one);
  return filled;
}

}  // namespace tilewright::tensorrt::host
