// SPDX-License-Identifier: Apache-2.0
// A small model on disk, and what the tests of quantize_model() ask of its results.
#pragma once

#include <tilewright/format.h>
#include <tilewright/quantize_model.h>
#include <tilewright/safetensors.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/refusal.h"

namespace tilewright::test {

namespace fs = std::filesystem;

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A folder with a small model: three layers in three float types, an embedding, a norm, a bias, a counter.
struct Model {
  fs::path folder = fs::temp_directory_path() / ("tilewright-quantize-" + std::to_string(::getpid()));
  std::vector<std::string> input = {(folder / "in.safetensors").string()};
  std::vector<float> weights = {};  // of a.weight

  explicit Model(float first = 0.5f) {
    fs::create_directories(folder);
    const std::vector<SafetensorsInfo> tensors = {
        {"a.weight", "F32", {24, 256}},  {"a.bias", "F32", {24}},       {"b.weight", "BF16", {16, 512}},
        {"c.weight", "F16", {8, 256}},   {"norm.weight", "F32", {256}}, {"embed_tokens.weight", "F16", {32, 256}},
        {"odd.weight", "F32", {3, 100}}, {"steps", "I64", {2}}};
    SafetensorsWriter writer(input[0], tensors, {{"made", "here"}});
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (const SafetensorsInfo& t : tensors) {
      const std::uint64_t size = writer.bytes(t.name);
      std::vector<std::byte> bytes(static_cast<std::size_t>(size));
      if (t.dtype == "F32") {
        std::vector<float> values(bytes.size() / 4);
        for (float& v : values) v = normal(random);
        values[0] = first;
        std::memcpy(bytes.data(), values.data(), bytes.size());
        if (t.name == "a.weight") weights = values;
      } else {
        for (std::size_t i = 0; i < bytes.size(); i += 2) {  // sixteen bits of finite floats near one
          const std::uint16_t bits = static_cast<std::uint16_t>(0x3c00u + random() % 512u);
          std::memcpy(&bytes[i], &bits, 2);
        }
      }
      writer.write(t.name, bytes);
    }
    writer.finish();
  }
  ~Model() { fs::remove_all(folder); }
  std::string operator/(const char* name) const { return (folder / name).string(); }

  QuantizeReport quantize(const std::string& format, const char* output, QuantizePolicy policy = {}) const {
    policy.format = format;
    return quantize_model(input, *this / output, policy);
  }
};

inline std::vector<std::string> quantized(const QuantizeReport& report) {
  std::vector<std::string> names;
  for (const TensorReport& t : report.tensors)
    if (t.quantized) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

inline std::vector<float> decode(const char* format, const std::vector<std::byte>& data,
                                 const std::vector<std::byte>& scales, const float* global, std::int64_t rows,
                                 std::int64_t cols) {
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  Format::parse(format).info().decode({data.data(), scales.data(), global}, rows, cols, values.data());
  return values;
}

// A process that is killed when its work has come this far.
inline void killed(const Model& model, const std::string& format, const char* output, int calls) {
  const pid_t child = ::fork();
  if (child == 0) {
    QuantizePolicy policy;
    policy.sync_bytes = 1;
    policy.threads = 1;
    policy.progress = [&](std::string_view, int, int) {
      if (--calls == 0) ::kill(::getpid(), SIGKILL);
    };
    model.quantize(format, output, policy);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
}

inline std::string message(const Model& model, const std::string& format, const char* output,
                           const QuantizePolicy& policy) {
  return refusal([&] { model.quantize(format, output, policy); }).what();
}
inline void contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace tilewright::test
