// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <random>

#include "bench/suite/matrix.h"

namespace tilewright::bench {

Operand operand_over(Format f, const std::function<void*(int)>& pointer) {
  MutableOperand o;
  for (std::size_t i = 0; i < f.info().streams.size(); ++i)
    o.set(f.info().streams[i].stream, pointer(static_cast<int>(i)));
  return o;
}

MutableOperand streams_of(Format f, std::int64_t rows, std::int64_t cols,
                          std::vector<std::vector<std::byte>>& streams) {
  for (std::size_t i = 0; i < f.info().streams.size(); ++i)
    streams.emplace_back(static_cast<std::size_t>(f.stream_bytes(static_cast<int>(i), rows, cols)));
  const Operand o = operand_over(f, [&](int i) { return streams[static_cast<std::size_t>(i)].data(); });
  return {const_cast<void*>(o.data), const_cast<void*>(o.scales), const_cast<float*>(o.global)};
}

Matrix make(const Device& device, Format f, std::int64_t rows, std::int64_t cols, unsigned seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  float amax = 0;
  for (float& v : values) v = normal(random), amax = std::max(amax, std::fabs(v));
  Matrix m;
  const MutableOperand host = streams_of(f, rows, cols, m.streams);
  if (f.info().global_for) *host.global = f.info().global_for(amax);
  f.info().encode(values.data(), rows, cols, host, 0);
  m.decoded.resize(values.size());
  f.info().decode({host.data, host.scales, host.global}, rows, cols, m.decoded.data());
  for (const auto& s : m.streams) {
    m.device.emplace_back(device, s.size() + 16);
    m.device.back().upload(s);
  }
  m.operand = operand_over(f, [&](int i) { return m.device[static_cast<std::size_t>(i)].data(); });
  return m;
}

std::vector<float> rounded_to(Format f, const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  std::vector<std::vector<std::byte>> streams;
  const MutableOperand o = streams_of(f, rows, cols, streams);
  f.info().encode(values.data(), rows, cols, o, 0);
  std::vector<float> rounded(values.size());
  f.info().decode({o.data, o.scales, o.global}, rows, cols, rounded.data());
  return rounded;
}

}  // namespace tilewright::bench
