// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the C interface: handles that release themselves, and failures taken apart.
#pragma once

#include <tilewright/tilewright_c.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/fake_cuda.h"
#include "support/paths.h"
#include "support/sentence.h"

namespace tilewright::test {

template <auto Release>
struct Releases {
  template <class T>
  void operator()(T* handle) const {
    Release(handle);
  }
};
using EngineHandle = std::unique_ptr<tw_engine, Releases<tw_engine_release>>;
using ProblemHandle = std::unique_ptr<tw_problem, Releases<tw_problem_release>>;
using DeviceHandle = std::unique_ptr<tw_device, Releases<tw_device_release>>;
using KernelHandle = std::unique_ptr<tw_kernel, Releases<tw_kernel_release>>;
using MemoryHandle = std::unique_ptr<tw_memory, Releases<tw_memory_release>>;
using OptionsHandle = std::unique_ptr<tw_options, Releases<tw_options_release>>;
using TaskHandle = std::unique_ptr<tw_task, Releases<tw_task_release>>;
using ReportHandle = std::unique_ptr<tw_tune_report, Releases<tw_tune_report_release>>;
using Text = std::unique_ptr<char, Releases<tw_free>>;

struct Failure {
  tw_status status = TW_OK;
  std::string message, field, value, allowed;
};

// Calls f(tw_error**), which has to fail, and says how. The error object and tw_last_error() have to agree.
template <class F>
Failure failure(const F& f) {
  tw_error* error = nullptr;
  const tw_status status = f(&error);
  REQUIRE(status != TW_OK);
  REQUIRE(error != nullptr);
  CHECK(tw_error_status(error) == status);
  REQUIRE(tw_last_error() != nullptr);
  CHECK(std::string(tw_error_message(tw_last_error())) == tw_error_message(error));
  Failure result{status, tw_error_message(error), tw_error_field(error), tw_error_value(error),
                 tw_error_allowed(error)};
  tw_error_release(error);
  INFO(result.message);
  CHECK(is_sentence(result.message));
  return result;
}

// Calls f(tw_error**), which has to succeed.
template <class F>
void succeed(const F& f) {
  tw_error* error = reinterpret_cast<tw_error*>(&error);  // has to be overwritten
  const tw_status status = f(&error);
  INFO((error ? tw_error_message(error) : ""));
  REQUIRE(status == TW_OK);
  CHECK(error == nullptr);
}

// A failure of a launch, which has no error object.
inline Failure launch_failure(tw_status status) {
  REQUIRE(status != TW_OK);
  const tw_error* e = tw_last_error();
  REQUIRE(e != nullptr);
  return {status, tw_error_message(e), tw_error_field(e), tw_error_value(e), tw_error_allowed(e)};
}

ProblemHandle problem(const std::string& text);
// The double's device, fresh: launches do what the handler says.
DeviceHandle fake_device();
// An engine with a cache in memory, or in that file.
EngineHandle engine(const std::string& cache = ":memory:");
MemoryHandle memory(const DeviceHandle& device, std::size_t bytes);

class Scratch {
 public:
  Scratch();
  ~Scratch();
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace tilewright::test
