// SPDX-License-Identifier: Apache-2.0
#include "bench/gemm/gemm_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace tilewright::bench {
namespace {

const std::vector<Row>& rows() {
  using enum Target;
  static const std::vector<std::int64_t> both{1024, 4096}, decoded{1, 16, 64};
  static const std::vector<Row> table = {
      {"bf16, fp16", "bf16", "x=bf16 w=bf16 y=bf16", both, ratio, 0.97, "bf16"},
      {"bf16, fp16", "fp16", "x=f16 w=f16 y=f16", both, ratio, 0.97, "fp16"},
      {"fp8 rows x channels", "fp8 rows x channels", "x=e4m3_row w=e4m3_row y=bf16 accum=fast", both, ratio, 1.0,
       "fp8+rows"},
      {"", "signs x signs", "x=sign_row w=sign_row y=bf16", {4096}, teraflops, 9000, ""},
      // Beside its own int8: 0.9 of that. x of 8192 x 8192 is unpacked in the workspace.
      {"", "int4 x int4", "x=int4_row w=int4_row y=bf16 workspace=67633152", {1024, 8192}, teraflops, 0, ""},
      {"",
       "int8, beside int4 x int4",
       "x=int8_row w=int8_row y=bf16 workspace=67633152",
       {1024, 8192},
       teraflops,
       0,
       ""},
      // Sums in single precision, which the rival's fast accumulation gives up: not judged against it.
      {"", "fp8, full accumulation", "x=e4m3_row w=e4m3_row y=bf16", both, ratio, 0, "fp8+rows"},
      {"fp8 128-blocks", "fp8 128-blocks", "x=e4m3_g128 w=e4m3_b128 y=bf16", {4096}, ratio, 0.9, "fp8"},
      {"int8 to bf16", "int8 to bf16", "x=int8_row w=int8_row y=bf16", both, ratio, 1.7, "int8"},
      // What cuBLASLt does when it may round its result to eight bits, for which bf16 is no substitute: not judged.
      {"", "int8, rival rounds to int8", "x=int8_row w=int8_row y=bf16", both, ratio, 0, "int8+int8"},
      {"int4-g128 x 16-bit", "int4-g128 x f16", "x=f16 w=int4_g128 y=f16", both, ratio, 0.92, "bf16"},
      {"int4-g128 x 16-bit", "int4-g128 x bf16", "x=bf16 w=int4_g128 y=bf16", both, ratio, 0.92, "bf16"},
      {"q4_0, nvfp4 x 16-bit", "q4_0 x f16", "x=f16 w=q4_0 y=f16", both, ratio, 0.85, "bf16"},
      {"q4_0, nvfp4 x 16-bit", "nvfp4 x f16", "x=f16 w=nvfp4 y=f16 global=mul", both, ratio, 0.85, "bf16"},
      {"block formats x 16-bit", "q4_k x f16", "x=f16 w=q4_k y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q5_k x f16", "x=f16 w=q5_k y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q6_k x f16", "x=f16 w=q6_k y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q8_0 x f16", "x=f16 w=q8_0 y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q4_1 x f16", "x=f16 w=q4_1 y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q5_0 x f16", "x=f16 w=q5_0 y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q5_1 x f16", "x=f16 w=q5_1 y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "mxfp4 x bf16", "x=bf16 w=mxfp4 y=bf16", {1024}, ratio, 0.75, "bf16"},
      {"q4_0 x q8_1, faithful", "q4_0 x q8_1", "x=q8_1 w=q4_0 y=f32", {1024}, teraflops, 350, ""},
      {"int4-g128 x fp8 or int8", "int4-g128 x int8", "x=int8_row w=int4_g128 y=bf16", both, ratio, 0.8, "fp8"},
      {"int4-g128 x fp8 or int8", "int4-g128 x fp8", "x=e4m3_row w=int4_g128 y=bf16", both, ratio, 0.8, "fp8"},
      {"int4 or e2m1 per channel x fp8", "int4 rows x int8", "x=int8_row w=int4_row y=bf16", both, ratio, 0.97, "fp8"},
      {"int4 or e2m1 per channel x fp8", "int4 rows x fp8", "x=e4m3_row w=int4_row y=bf16 accum=fast", both, ratio,
       0.97, "fp8"},
      {"int4 or e2m1 per channel x fp8", "e2m1 rows x fp8", "x=e4m3_row w=e2m1_row y=bf16 accum=fast", both, ratio,
       0.97, "fp8"},
      // Lossy: NVFP4 weights cast to fp8 rows at load, so the kernel is that of fp8 rows x channels.
      {"nvfp4 x fp8, lossy",
       "nvfp4 as fp8 rows x fp8",
       "x=e4m3_row w=e4m3_row y=bf16 accum=fast",
       {1024},
       ratio,
       0.9,
       "fp8"},
      // Decode: 16-bit weights at m = 1 alone, the others at 16 and 64 as well.
      {"", "bf16", "x=bf16 w=bf16 y=bf16", {1}, decode, 16, ""},
      {"", "fp16", "x=f16 w=f16 y=f16", {1}, decode, 16, ""},
      {"", "q4_0 x f16", "x=f16 w=q4_0 y=f16", decoded, decode, 4.5, ""},
      {"", "q4_0 x q8_1", "x=q8_1 w=q4_0 y=f32", decoded, decode, 4.5, ""},
      {"", "q8_0 x f16", "x=f16 w=q8_0 y=f16", decoded, decode, 8.5, ""},
      {"", "q4_k x f16", "x=f16 w=q4_k y=f16", decoded, decode, 4.5, ""},
      {"", "nvfp4 x f16", "x=f16 w=nvfp4 y=f16 global=mul", decoded, decode, 4.5, ""},
      {"", "fp8 rows x channels", "x=e4m3_row w=e4m3_row y=bf16", decoded, decode, 8, ""},
      {"", "int8 to bf16", "x=int8_row w=int8_row y=bf16", decoded, decode, 8, ""},
      {"", "signs x signs", "x=sign_row w=sign_row y=bf16", decoded, decode, 1, ""},
      {"", "int4 x int4", "x=int4_row w=int4_row y=bf16", decoded, decode, 4, ""},
      {"", "int4-g128 x f16", "x=f16 w=int4_g128 y=f16", decoded, decode, 4.125, ""},
      {"", "int4-g128 x int8", "x=int8_row w=int4_g128 y=bf16", decoded, decode, 4.125, ""},
      {"", "int4-g128 x fp8", "x=e4m3_row w=int4_g128 y=bf16", decoded, decode, 4.125, ""},
      {"", "q5_k x f16", "x=f16 w=q5_k y=f16", decoded, decode, 5.5, ""},
      {"", "q6_k x f16", "x=f16 w=q6_k y=f16", decoded, decode, 6.5625, ""},
      {"", "q4_1 x f16", "x=f16 w=q4_1 y=f16", decoded, decode, 5, ""},
      {"", "q5_0 x f16", "x=f16 w=q5_0 y=f16", decoded, decode, 5.5, ""},
      {"", "q5_1 x f16", "x=f16 w=q5_1 y=f16", decoded, decode, 6, ""},
      {"", "mxfp4 x bf16", "x=bf16 w=mxfp4 y=bf16", decoded, decode, 4.25, ""},
      {"", "fp8 rows x bf16", "x=bf16 w=e4m3_row y=bf16", decoded, decode, 8, ""},
      {"", "int4 rows x f16", "x=f16 w=int4_row y=f16", decoded, decode, 4, ""},
      // 16-bit x by weights of one byte or of one scale per row: no target.
      {"", "fp8 rows x bf16", "x=bf16 w=e4m3_row y=bf16", both, ratio, 0, "bf16"},
      {"", "int4 rows x f16", "x=f16 w=int4_row y=f16", both, ratio, 0, "bf16"},
      // Exact: fp8 x is widened, and the 16-bit units bound it.
      {"4-bit and 8-bit blocks x fp8", "nvfp4 x fp8", "x=e4m3_row w=nvfp4 y=bf16 global=mul", both, ratio, 0.85,
       "bf16"},
      {"4-bit and 8-bit blocks x fp8", "q4_0 x fp8", "x=e4m3_row w=q4_0 y=bf16", both, ratio, 0.85, "bf16"},
      {"4-bit and 8-bit blocks x fp8", "q8_0 x fp8", "x=e4m3_row w=q8_0 y=bf16", both, ratio, 0.85, "bf16"},
      {"4-bit and 8-bit blocks x fp8", "mxfp4 x fp8", "x=e4m3_row w=mxfp4 y=bf16", both, ratio, 0.85, "bf16"},
      // Lossy: weights of 4.5 bits, rounded to E4M3 on their way to the matrix units.
      {"nvfp4 x fp8, lossy at 4.5 bits", "nvfp4 x fp8, fast", "x=e4m3_row w=nvfp4 y=bf16 global=mul accum=fast", both,
       ratio, 0.8, "fp8"},
      {"", "nvfp4 x fp8", "x=e4m3_row w=nvfp4 y=bf16 global=mul", decoded, decode, 4.5, ""},
      {"", "q4_0 x fp8", "x=e4m3_row w=q4_0 y=bf16", decoded, decode, 4.5, ""},
      {"", "q8_0 x fp8", "x=e4m3_row w=q8_0 y=bf16", decoded, decode, 8.5, ""},
      {"", "mxfp4 x fp8", "x=e4m3_row w=mxfp4 y=bf16", decoded, decode, 4.25, ""},
  };
  return table;
}

// Kernels are tuned on 4096x14336 and 28672x4096 (--shapes names them). What is judged is another set: all of it with
// --shapes judged; by default a row gets two of `large`, or one of `small`, turn by turn.
const std::vector<Shape> kJudged{{6144, 4096},  {4096, 4096},  {10240, 8192}, {8192, 8192},
                                 {57344, 8192}, {8192, 28672}, {5120, 13824}, {3584, 18944}};
const std::vector<Shape> kLarge{{10240, 8192}, {6144, 4096}, {5120, 13824}, {3584, 18944}, {8192, 8192}};
const std::vector<Shape> kSmall{{8192, 28672}, {8192, 8192}, {57344, 8192}, {4096, 4096}, {10240, 8192}};

std::int64_t number(const char* field, const std::string& text) {
  std::size_t end = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(text, &end);
  } catch (const std::exception&) {
  }
  if (value < 1 || end != text.size())
    throw Error(ErrorCode::invalid_argument, field, text, "must be a positive number");
  return value;
}

}  // namespace

std::vector<Shape> shapes_of(const std::string& text) {
  if (text == "judged") return kJudged;
  std::vector<Shape> shapes;
  for (const std::string& part : split(text, ';')) {
    const std::vector<std::string> both = split(part, part.find('x') == part.npos ? ',' : 'x');
    if (both.size() != 2) throw Error(ErrorCode::invalid_argument, "shapes", part, "must be N,K;N,K;... or 'judged'");
    shapes.push_back({number("shapes", both[0]), number("shapes", both[1])});
  }
  return shapes;
}

std::vector<std::int64_t> numbers_of(const char* field, const std::string& text) {
  std::vector<std::int64_t> numbers;
  for (const std::string& part : split(text, ',')) numbers.push_back(number(field, part));
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string problem_text(const Row& row, Shape shape, std::int64_t m, const std::string& pack) {
  const std::string_view text = row.text;
  return fmt::format("gemm {} m={} n={} k={}{}{} weights=constant", text, m, shape.n, shape.k,
                     pack.empty() ? "" : " pack=" + pack,
                     text.find("workspace=") == text.npos ? fmt::format(" workspace={}", kProblemWorkspace) : "");
}

Goal goal_of(const Row& row, std::int64_t m, double weight_bytes) {
  switch (row.target) {
    case Target::ratio: return {row.value, row.group, fmt::format(">= {:.2f}x", row.value), false};
    case Target::teraflops: return {row.value, row.group, fmt::format(">= {:.0f} TF", row.value), false};
    case Target::decode: break;
  }
  if (m == 16) return {1.15, "m=16 over m=1", "<= 1.15x", true};
  if (m == 64) return {1.35, "m=64 over m=1", "<= 1.35x", true};
  if (m != 1) return {};
  if (weight_bytes >= 100e6) return {0.85, "m=1, weights >= 100 MB", ">= 85 %", false};
  if (weight_bytes >= 30e6) return {0.75, "m=1, weights 30-100 MB", ">= 75 %", false};
  if (weight_bytes >= 8e6) return {0.50, "m=1, weights 8-30 MB", ">= 50 %", false};
  return {};
}

std::vector<Job> gemm_jobs(const Settings& settings) {
  const std::vector<Shape> asked = shapes_of(settings.shapes);
  std::set<std::int64_t> ms;
  for (const std::string& m : split(settings.ms, ',')) ms.insert(number("m", m));
  std::map<std::size_t, std::vector<Job>> passes;
  int large = 0, small = 0;
  for (const Row& row : rows()) {
    const bool decode = row.target == Target::decode;
    std::vector<Shape> shapes = asked;
    if (shapes.empty() && decode) shapes = {kSmall[static_cast<std::size_t>(small++) % kSmall.size()]};
    if (shapes.empty())
      for (int i = 0; i < 2; ++i) shapes.push_back(kLarge[static_cast<std::size_t>(large++) % kLarge.size()]);
    const std::string name = fmt::format("{} {}; {}; {}", decode ? "decode" : "large", row.label, row.group, row.text);
    const std::vector<std::string> wanted = split(settings.rows, '|');
    if (!wanted.empty() &&
        std::none_of(wanted.begin(), wanted.end(), [&](const std::string& w) { return name.find(w) != name.npos; }))
      continue;
    std::vector<std::int64_t> of_row;
    for (std::int64_t m : row.ms)
      if (ms.empty() || ms.count(m)) of_row.push_back(m);
    if (of_row.empty()) continue;
    if (decode && of_row.front() != 1) of_row.insert(of_row.begin(), 1);  // what the others are measured by
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (decode) passes[i].push_back({&row, shapes[i], of_row});
      if (!decode)
        for (std::int64_t m : of_row) passes[i].push_back({&row, shapes[i], {m}});
    }
  }
  std::vector<Job> jobs;
  for (auto& [pass, list] : passes) jobs.insert(jobs.end(), list.begin(), list.end());
  return jobs;
}

}  // namespace tilewright::bench
