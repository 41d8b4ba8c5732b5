// SPDX-License-Identifier: Apache-2.0
// CUDA Quantization Kernels' functions on the driver's double: launches run what their kernels would, on the host.
#include "compat/cuda_kernels.h"

#include <tilewright/gemm.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>

#include "capi/capi_test.h"
#include "compat/elements.h"

namespace tilewright::test {
namespace {

TW_ELEMENTS(inline)

// Runs the launches of products of these extents.
struct Machine {
  int64_t n = 0, k = 0;
  int launches = 0;
  DeviceHandle device = fake_device();
  EngineHandle en = engine();

  Machine() {
    fake_cuda_set_launch_handler(&Machine::launched, this);
    cuda_kernels_use(en.get(), device.get());
  }
  ~Machine() {
    CHECK(fake_cuda_violation_count() == 0);
    cuda_kernels_use(nullptr, nullptr);
    fake_cuda_set_launch_handler(nullptr, nullptr);
  }

  static void launched(const FakeLaunch* launch, void* user) {
    auto& self = *static_cast<Machine*>(user);
    ++self.launches;
    const void* first = launch->params[0];
    if (std::string(launch->entry) == "tw_compat_elements") {
      const auto& p = *static_cast<const tw_elements*>(first);
      CHECK(launch->grid[0] == (p.n + 255) / 256);
      for (int64_t i = 0; i < p.n; ++i) tw_element(&p, i);
    } else if (launch->param_bytes[0] == 2 * sizeof(void*)) {
      const auto* from = static_cast<const int8_t*>(static_cast<void* const*>(first)[0]);
      auto* to = static_cast<int8_t*>(static_cast<void* const*>(first)[1]);
      for (int64_t i = 0; i < self.n * self.k; ++i) to[i] = from[i % self.k * self.n + i / self.k];
    } else {
      self.multiply(*static_cast<const GemmArgs*>(first));
    }
  }
  bool floats = false;
  void multiply(const GemmArgs& args) const {
    for (int64_t i = 0; i < args.m * n; ++i) {
      const auto *x = static_cast<const int8_t*>(args.x.data) + i / n * k,
                 *w = static_cast<const int8_t*>(args.w.data) + i % n * k;
      int32_t sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += x[j] * w[j];
      if (floats) {
        const float bias = args.bias ? static_cast<const float*>(args.bias)[i % n] : 0.0f;
        static_cast<float*>(args.y)[i] = std::max(args.alpha * static_cast<float>(sum) + bias, 0.0f);
      } else {
        static_cast<int32_t*>(args.y)[i] = sum;
      }
    }
  }

  template <class T>
  MemoryHandle upload(const std::vector<T>& values) const {
    MemoryHandle made = memory(device, values.size() * sizeof(T));
    succeed([&](tw_error** e) { return tw_memory_upload(made.get(), 0, values.data(), values.size() * sizeof(T), e); });
    return made;
  }
  template <class T>
  static std::vector<T> download(const MemoryHandle& from) {
    std::vector<T> values(tw_memory_size(from.get()) / sizeof(T));
    succeed(
        [&](tw_error** e) { return tw_memory_download(from.get(), 0, values.data(), values.size() * sizeof(T), e); });
    return values;
  }
};

template <class T = void>
T* at(const MemoryHandle& memory) {
  return static_cast<T*>(tw_memory_data(memory.get()));
}

std::vector<int8_t> random_bytes(size_t count, unsigned seed, int low = -128, int high = 127) {
  std::mt19937 random(seed);
  std::vector<int8_t> values(count);
  for (auto& v : values)
    v = static_cast<int8_t>(low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)));
  return values;
}

// The sums of a [m, k] by b [k, n], in 64 bits.
std::vector<int64_t> sums(const std::vector<int8_t>& a, const std::vector<int8_t>& b, int m, int n, int k) {
  std::vector<int64_t> out(static_cast<size_t>(m * n));
  for (int r = 0; r < m; ++r) {
    for (int c = 0; c < n; ++c) {
      for (int j = 0; j < k; ++j)
        out[static_cast<size_t>(r * n + c)] += a[static_cast<size_t>(r * k + j)] * b[static_cast<size_t>(j * n + c)];
    }
  }
  return out;
}

int32_t truncated(int64_t sum, float a, float b, float c) {
  const float r = static_cast<float>(sum) * a * b * c;
  if (std::isnan(r)) return 0;
  return static_cast<int32_t>(std::clamp(std::trunc(static_cast<double>(r)), -2147483648.0, 2147483647.0));
}

std::string refusal(tw_status status) {
  CHECK(status == TW_INVALID_ARGUMENT);
  return cuda_kernels_last_error();
}

}  // namespace

TEST_CASE("compat: int8 products, exact, scaled and truncated") {
  Machine machine;
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {3, 5, 7}, {16, 32, 64}, {17, 33, 19}}) {
    machine.n = n, machine.k = k;
    const auto a = random_bytes(static_cast<size_t>(m * k), 1), b = random_bytes(static_cast<size_t>(k * n), 2);
    const auto want = sums(a, b, m, n, k);
    const MemoryHandle da = machine.upload(a), db = machine.upload(b),
                       dc = machine.upload(std::vector<int32_t>(want.size(), 7));
    for (const auto& [sa, sb, sc] : {std::tuple{1.0f, 1.0f, 1.0f},
                                     {1 / 127.0f, 1 / 127.0f, 1.0f},
                                     {0.3f, -7.0f, 2.5f},
                                     {1e30f, 1e30f, 0.0f},
                                     {1e9f, 1e9f, 1.0f}}) {
      machine.launches = 0;
      REQUIRE(int8_matmul_cuda(at<int8_t>(da), at<int8_t>(db), at<int32_t>(dc), m, n, k, sa, sb, sc, nullptr) == TW_OK);
      const auto got = Machine::download<int32_t>(dc);
      for (size_t i = 0; i < want.size(); ++i) CHECK(got[i] == (sa == 1.0f ? want[i] : truncated(want[i], sa, sb, sc)));
      CHECK(machine.launches == (sa == 1.0f ? 2 : 3));
    }
  }
}

TEST_CASE("compat: int4 products as documented, the pad of an odd K unread") {
  Machine machine;
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {4, 6, 9}, {16, 32, 64}}) {
    machine.n = n, machine.k = k;
    const auto a = random_bytes(static_cast<size_t>(m * k), 3, -8, 7),
               b = random_bytes(static_cast<size_t>(k * n), 4, -8, 7);
    const int half = (k + 1) / 2;
    std::vector<uint8_t> pa(static_cast<size_t>(m * half), 0xf0), pb(static_cast<size_t>(half * n), 0x50);
    const auto put = [](uint8_t& byte, int j, int8_t value) {
      const int shift = 4 * (j % 2);
      byte = static_cast<uint8_t>((byte & ~(15 << shift)) | (value + 8) << shift);
    };
    for (int i = 0; i < m * k; ++i)
      put(pa[static_cast<size_t>(i / k * half + i % k / 2)], i % k, a[static_cast<size_t>(i)]);
    for (int i = 0; i < k * n; ++i)
      put(pb[static_cast<size_t>(i / n / 2 * n + i % n)], i / n, b[static_cast<size_t>(i)]);
    const auto want = sums(a, b, m, n, k);
    const MemoryHandle da = machine.upload(pa), db = machine.upload(pb),
                       dc = machine.upload(std::vector<int32_t>(want.size(), 7));
    for (const float scale : {1.0f, 0.25f}) {
      REQUIRE(int4_matmul_cuda(at<uint8_t>(da), at<uint8_t>(db), at<int32_t>(dc), m, n, k, scale, 1, 1, nullptr) ==
              TW_OK);
      const auto got = Machine::download<int32_t>(dc);
      for (size_t i = 0; i < want.size(); ++i) CHECK(got[i] == truncated(want[i], scale, 1, 1));
    }
  }
}

TEST_CASE("compat: fused product, bias and ReLU") {
  Machine machine;
  machine.floats = true;
  const int m = 5, n = 12, k = 48;
  machine.n = n, machine.k = k;
  const auto a = random_bytes(m * k, 5), b = random_bytes(k * n, 6);
  std::vector<float> bias(n);
  for (int i = 0; i < n; ++i) bias[static_cast<size_t>(i)] = static_cast<float>(i - 6) * 0.5f;
  const auto want = sums(a, b, m, n, k);
  const MemoryHandle da = machine.upload(a), db = machine.upload(b), dbias = machine.upload(bias),
                     dc = memory(machine.device, m * n * 4);
  for (const bool with : {false, true}) {
    REQUIRE(fused_int8_matmul_bias_relu_cuda(at<int8_t>(da), at<int8_t>(db), with ? at<float>(dbias) : nullptr,
                                             at<float>(dc), m, n, k, 0.01f, 0.02f, 1, nullptr) == TW_OK);
    const auto got = Machine::download<float>(dc);
    for (size_t i = 0; i < want.size(); ++i) {
      const double exact = static_cast<double>(want[i]) * 0.01f * 0.02f + (with ? bias[i % n] : 0.0f);
      CHECK(std::abs(got[i] - std::max(exact, 0.0)) <= 1e-5 * (1 + std::abs(exact)));
    }
  }
}

TEST_CASE("compat: to int8, half away from zero, and back") {
  Machine machine;
  std::vector<float> x = {0.49999997f, -0.49999997f, INFINITY, -INFINITY, NAN};
  for (int i = -600; i < 600; ++i) x.push_back(static_cast<float>(i) * 0.25f);
  const int count = static_cast<int>(x.size());
  const MemoryHandle dx = machine.upload(x), dq = memory(machine.device, x.size()),
                     df = memory(machine.device, 4 * x.size()), dh = memory(machine.device, 2 * x.size());
  for (const float zero : {0.0f, 3.5f, -120.25f}) {
    REQUIRE(quantize_cuda(at<float>(dx), at<int8_t>(dq), count, 0.5f, zero, nullptr) == TW_OK);
    REQUIRE(dequantize_fp32_cuda(at<int8_t>(dq), at<float>(df), count, 0.1f, zero, nullptr) == TW_OK);
    REQUIRE(dequantize_cuda(at<int8_t>(dq), at(dh), count, 0.1f, zero, nullptr) == TW_OK);
    const auto q = Machine::download<int8_t>(dq);
    const auto f = Machine::download<float>(df);
    const auto h = Machine::download<uint16_t>(dh);
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = std::isnan(x[i]) ? 127.0 : std::clamp<double>(x[i] / 0.5f + zero, -128.0, 127.0);
      CHECK(q[i] == std::lround(v));
      CHECK(f[i] == (static_cast<float>(q[i]) - zero) * 0.1f);
      CHECK(h[i] == tw_half_of(f[i]));
    }
  }
}

TEST_CASE("compat: float16 of every class of float32") {
  const auto bits = [](float f) { return tw_half_of(f); };
  CHECK(bits(0.0f) == 0x0000);
  CHECK(bits(-0.0f) == 0x8000);
  CHECK(bits(1.0f) == 0x3c00);
  CHECK(bits(-2.0f) == 0xc000);
  CHECK(bits(65504.0f) == 0x7bff);
  CHECK(bits(65519.996f) == 0x7bff);
  CHECK(bits(65520.0f) == 0x7c00);
  CHECK(bits(1e30f) == 0x7c00);
  CHECK(bits(-INFINITY) == 0xfc00);
  CHECK((bits(NAN) & 0x7fff) > 0x7c00);
  CHECK(bits(0x1p-24f) == 0x0001);
  CHECK(bits(0x1p-25f) == 0x0000);  // a tie, to even
  CHECK(bits(0x1.000002p-25f) == 0x0001);
  CHECK(bits(0x1.8p-24f) == 0x0002);    // a tie, to even
  CHECK(bits(0x1.ff8p-15f) == 0x03ff);  // the largest subnormal
  CHECK(bits(0x1p-14f) == 0x0400);
  CHECK(bits(1.00048828125f) == 0x3c00);  // a tie, to even
  CHECK(bits(1.00146484375f) == 0x3c02);
#ifdef __FLT16_MAX__  // and all others by the compiler's own conversion
  for (uint32_t u = 0; u < 0x7f800000u; u += 977) {
    float f;
    std::memcpy(&f, &u, sizeof f);
    const auto half = static_cast<_Float16>(f);
    uint16_t want;
    std::memcpy(&want, &half, sizeof want);
    if (bits(f) != want) FAIL_CHECK(f);
  }
#endif
}

TEST_CASE("compat: what the original swallowed is named") {
  Machine machine;
  const MemoryHandle d = memory(machine.device, 4096);
  auto* i8 = at<int8_t>(d);
  auto* i32 = at<int32_t>(d);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto multiply = [&](const int8_t* a, const int8_t* b, int32_t* c, int m, int n, int k, float scale) {
    return int8_matmul_cuda(a, b, c, m, n, k, 1, scale, 1, nullptr);
  };
  CHECK(refusal(multiply(nullptr, i8, i32, 1, 1, 1, 1)) == "A must be device memory (got null)");
  CHECK(refusal(multiply(i8, nullptr, i32, 1, 1, 1, 1)) == "B must be device memory (got null)");
  CHECK(refusal(multiply(i8, i8, nullptr, 1, 1, 1, 1)) == "C must be device memory (got null)");
  CHECK(refusal(multiply(i8, i8, i32, -1, 1, 1, 1)) == "M must be at least 0 (got -1)");
  CHECK(refusal(multiply(i8, i8, i32, 1, 1, 0, 1)) == "K must be at least 1 (got 0)");
  CHECK(refusal(multiply(i8, i8, i32, 1, 1, 1, nan)) == "scale_b must be a finite number (got nan)");
  CHECK(refusal(int4_matmul_cuda(at<uint8_t>(d), nullptr, i32, 1, 1, 1, 1, 1, 1, nullptr)) ==
        "B_packed must be device memory (got null)");
  CHECK(refusal(fused_int8_matmul_bias_relu_cuda(i8, i8, nullptr, nullptr, 1, 1, 1, 1, 1, 1, nullptr)) ==
        "C must be device memory (got null)");
  CHECK(refusal(quantize_cuda(at<float>(d), i8, 1, 0, 0, nullptr)) == "scale must be finite and not 0 (got 0)");
  CHECK(refusal(quantize_cuda(at<float>(d), i8, -5, 1, 0, nullptr)) == "size must be at least 0 (got -5)");
  CHECK(refusal(dequantize_cuda(nullptr, i8, 1, 1, 0, nullptr)) == "quantized must be device memory (got null)");
  CHECK(refusal(dequantize_fp32_cuda(i8, nullptr, 1, 1, 0, nullptr)) == "output must be device memory (got null)");
  CHECK(refusal(dequantize_fp32_cuda(i8, at<float>(d), 1, 1, nan, nullptr)) ==
        "zero_point must be a finite number (got nan)");
  CHECK(machine.launches == 0);
  // What the library itself refuses, in its words.
  CHECK(multiply(i8, i8, i32, 1, 1, 131072, 1) == TW_TOO_LARGE);
  CHECK(std::string(cuda_kernels_last_error()).find("(got 131072)") != std::string::npos);
  machine.n = machine.k = 16;
  CHECK(multiply(i8 + 1, i8 + 16, i32 + 512, 1, 16, 16, 1) == TW_INVALID_ARGUMENT);
  CHECK(std::string(cuda_kernels_last_error()).find("16") != std::string::npos);
  // Nothing to do.
  CHECK(multiply(nullptr, nullptr, nullptr, 0, 4, 4, 1) == TW_OK);
  CHECK(quantize_cuda(nullptr, nullptr, 0, 1, 0, nullptr) == TW_OK);
  // A device that fails, and each thread's own message.
  fake_cuda_fail("cuLaunchKernelEx", 1, 719);
  CHECK(dequantize_fp32_cuda(i8, at<float>(d), 4, 1, 0, nullptr) == TW_DRIVER_FAILED);
  CHECK(std::string(cuda_kernels_last_error()) != "");
  std::thread([] { CHECK(std::string(cuda_kernels_last_error()).empty()); }).join();
}

}  // namespace tilewright::test
