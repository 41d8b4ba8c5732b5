// SPDX-License-Identifier: Apache-2.0
#include "jit/driver.h"

#include "fake_test.h"
#include "support/paths.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("driver: one table per library") {
  const Fake fake;
  const jit::Driver& driver = jit::Driver::open(paths::fake_cuda());
  CHECK(&jit::Driver::open(paths::fake_cuda()) == &driver);
  CHECK(driver.path() == paths::fake_cuda());
  CHECK_FALSE(driver.forked());
}

TEST_CASE("driver: a failed call names itself, the error and its text") {
  const Fake fake;
  const jit::Driver& driver = jit::Driver::open(paths::fake_cuda());
  fake_cuda_fail("cuInit", 1, 700);
  const auto error = error_of(ErrorCode::driver_failed, [&] { driver.must(driver.init, 0u); });
  CHECK(error.field() == "cuInit");
  CHECK(error.value() == "CUDA_ERROR_ILLEGAL_ADDRESS");
  CHECK(error.allowed() == "failed: an illegal memory access was encountered (700)");
  CHECK(jit::is_sticky(error));
  fake_cuda_fail("cuInit", 1, 12345);
  const auto unknown = error_of(ErrorCode::driver_failed, [&] { driver.must(driver.init, 0u); });
  CHECK(unknown.value() == "CUDA error 12345");
  CHECK_FALSE(jit::is_sticky(unknown));
  CHECK_NOTHROW(driver.must(driver.init, 0u));
}

TEST_CASE("libcuda is missing, or is something else") {
  const auto missing = error_of(ErrorCode::library_missing, [] { Device::open(0, "/nonexistent/libcuda.so.1"); });
  CHECK(mentions(missing, "libcuda"));
  CHECK(mentions(missing, "/nonexistent/libcuda.so.1"));
  const auto wrong = error_of(ErrorCode::library_missing, [] { Device::open(0, "libm.so.6"); });
  CHECK(mentions(wrong, "cuDriverGetVersion"));
  CHECK(Device::count("/nonexistent/libcuda.so.1") == 0);
}
