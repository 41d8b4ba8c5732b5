// SPDX-License-Identifier: Apache-2.0
// libFuzzer: every format's codec on any bytes. As floats they are encoded, within the stated bound if the format's
// limits allow them; as stored bytes they are decoded, and packed as tiles and back where the format has any.
#include <tilewright/error.h>
#include <tilewright/format.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using namespace tilewright;

namespace {

struct Bytes {
  const std::uint8_t* data;
  std::size_t size, at = 0;
  void fill(void* to, std::size_t count) {
    auto* out = static_cast<std::uint8_t*>(to);
    for (std::size_t i = 0; i < count; ++i) out[i] = size ? data[at++ % size] : 0;
  }
};

// Allocated to the byte, for the sanitizer to see.
struct Matrix {
  std::vector<std::uint8_t> data, scales;
  float global = 1.0f;
  Matrix(Format f, std::int64_t rows, std::int64_t cols) {
    for (std::size_t i = 0; i < f.info().streams.size(); ++i)
      if (f.info().streams[i].scope != Scope::tensor)
        (i == 0 ? data : scales).resize(static_cast<std::size_t>(f.stream_bytes(static_cast<int>(i), rows, cols)));
  }
  MutableOperand out() { return {data.data(), scales.data(), &global}; }
};

void encode(Format f, Bytes bytes) {
  const std::int64_t rows = 2, cols = 256;
  std::vector<float> x(static_cast<std::size_t>(rows * cols)), y(x.size());
  bytes.fill(x.data(), x.size() * sizeof(float));
  bool finite = true;
  float largest = 0;
  for (const float v : x) finite = finite && std::isfinite(v), largest = std::max(largest, std::fabs(v));
  for (std::size_t encoder = 0; encoder < f.info().encoders.size(); ++encoder) {
    Matrix m(f, rows, cols);
    if (f.info().global_for) m.global = f.info().global_for(largest);
    f.info().encode(x.data(), rows, cols, m.out(), static_cast<int>(encoder));
    f.info().decode(m.out(), rows, cols, y.data());
    const ErrorBound& bound = f.info().errors[encoder];
    if (!finite || largest > bound.largest) continue;
    // No narrower group than the matrix is looked at: fuzzing is for what is far off, not for the last half step.
    for (std::size_t i = 0; i < x.size(); ++i)
      if (!(std::fabs(static_cast<double>(y[i]) - x[i]) <= bound.at(x[i], largest, 2.0 * largest, largest)))
        __builtin_trap();
  }
}

void decode(Format f, Bytes bytes) {
  const std::int64_t rows = 64, cols = 256;
  Matrix m(f, rows, cols);
  bytes.fill(m.data.data(), m.data.size());
  bytes.fill(m.scales.data(), m.scales.size());
  bytes.fill(&m.global, sizeof(m.global));
  std::vector<float> y(static_cast<std::size_t>(rows * cols));
  f.info().decode(m.out(), rows, cols, y.data());
  for (const char* x : {"f16", "bf16", "e4m3_row", "int8_row", "q8_1"}) {
    Gemm g{Format::parse(x), f, Format::parse("f32"), 1, rows, cols};
    g.packing = Packing::tiles;
    Matrix tiles(f, 0, cols), back(f, rows, cols);
    try {
      tiles.data.resize(static_cast<std::size_t>(packed_bytes(g, StreamName::data)));
      tiles.scales.resize(static_cast<std::size_t>(packed_bytes(g, StreamName::scales)));
      pack_weights(g, m.out(), tiles.out());
      unpack_weights(g, tiles.out(), back.out());
    } catch (const Error&) {
      continue;  // no tiles for this x
    }
    if (back.data != m.data) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const Format f = Format::all()[data[0] % Format::all().size()];
  if (data[1] % 4)
    encode(f, {data + 2, size - 2});
  else
    decode(f, {data + 2, size - 2});
  return 0;
}
