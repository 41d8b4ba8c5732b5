// SPDX-License-Identifier: Apache-2.0
#include "cli/model.h"

#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/gguf.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tilewright::cli {
namespace {

// A matrix's streams as its format says.
struct Plain {
  std::vector<std::vector<std::byte>> bytes;
  MutableOperand operand;

  explicit Plain(const Matrix& m) {
    const auto streams = m.format.info().streams;
    for (int i = 0; i < static_cast<int>(streams.size()); ++i) {
      void* data = bytes.emplace_back(static_cast<std::size_t>(m.format.stream_bytes(i, m.rows, m.cols))).data();
      operand.set(streams[static_cast<std::size_t>(i)].stream, data);
    }
  }
};

void copy_stream(const Matrix& m, StreamName stream, const void* from, std::span<const std::span<std::byte>> buffers) {
  const int slot = m.slot(stream);
  if (slot < 0 || !from) return;
  const std::span<std::byte> to = buffers[static_cast<std::size_t>(slot)];
  std::memcpy(to.data(), from, to.size());
}

void store(const Matrix& m, Plain& plain, std::span<const std::span<std::byte>> buffers) {
  if (plain.operand.global && m.inverse_global) *plain.operand.global = 1 / *plain.operand.global;
  if (m.store) {
    const auto at = [&](int slot) -> void* {
      return slot < 0 ? nullptr : buffers[static_cast<std::size_t>(slot)].data();
    };
    m.store(plain.operand, {at(m.data), at(m.scales), static_cast<float*>(at(m.global))});
    return;
  }
  for (const StreamName stream : kStreams) copy_stream(m, stream, plain.operand.at(stream), buffers);
}

}  // namespace

std::string load_tensor(const std::string& path, const std::string& name, const Matrix& m,
                        std::span<const std::span<std::byte>> buffers) {
  const Gguf file = Gguf::open(path);
  const GgufTensor& t = file.tensor(name);
  if (t.rows() != m.rows || t.cols() != m.cols)
    throw Error(ErrorCode::invalid_argument, "--tensor", name,
                fmt::format("is {} x {} (n x k), and the problem needs {} x {}", t.rows(), t.cols(), m.rows, m.cols));
  const std::string_view format = t.format;
  if (format.empty())
    throw Error(ErrorCode::unsupported, "--tensor", name,
                fmt::format("has type {}, which cannot be read", t.type_name));
  std::vector<std::byte> bytes = file.read(t);
  Plain plain(m);
  if (format == m.format.name()) {
    std::memcpy(plain.operand.data, bytes.data(), bytes.size());
    store(m, plain, buffers);
    return fmt::format("{} ({}, as stored)", name, format);
  }
  if (format != "f32" && format != "f16" && format != "bf16")
    throw Error(ErrorCode::invalid_argument, m.name, std::string(m.format.name()),
                fmt::format("must be {1}, as tensor '{0}' is; or name a tensor of floats", name, format));
  std::vector<float> values(static_cast<std::size_t>(m.rows * m.cols));
  Format::parse(format).info().decode({bytes.data(), nullptr, nullptr}, m.rows, m.cols, values.data());
  const FormatInfo& info = m.format.info();
  if (plain.operand.global) {
    float amax = 0;
    for (const float v : values) amax = std::max(amax, std::fabs(v));
    *plain.operand.global = info.global_for(amax);
  }
  info.encode(values.data(), m.rows, m.cols, plain.operand, 0);
  store(m, plain, buffers);
  return fmt::format("{} ({}, encoded to {})", name, format, m.format.name());
}

}  // namespace tilewright::cli
