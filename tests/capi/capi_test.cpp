// SPDX-License-Identifier: Apache-2.0
#include "capi/capi_test.h"

#include <cstdlib>
#include <filesystem>

extern "C" {
int header_initializers(void);
tw_status stream_bytes_of_number(int stream, int64_t* bytes, tw_error** error);
const char* status_name_of_number(int status);
}

namespace tilewright::test {

ProblemHandle problem(const std::string& text) {
  tw_problem* made = nullptr;
  succeed([&](tw_error** e) { return tw_problem_parse(text.c_str(), &made, e); });
  return ProblemHandle(made);
}

DeviceHandle fake_device() {
  fake_cuda_reset();
  tw_device* made = nullptr;
  succeed([&](tw_error** e) { return tw_device_open(0, paths::fake_cuda().c_str(), &made, e); });
  return DeviceHandle(made);
}

EngineHandle engine(const std::string& cache) {
  tw_options* options = nullptr;
  succeed([&](tw_error** e) { return tw_options_create(&options, e); });
  const OptionsHandle owned(options);
  const std::string driver = paths::fake_cuda();
  for (const auto& [name, value] : {std::pair{"cache", cache}, {"driver", driver}, {"shipped", std::string()}}) {
    succeed([&, n = name, v = value](tw_error** e) { return tw_options_set(options, n, v.c_str(), e); });
  }
  tw_engine* made = nullptr;
  succeed([&](tw_error** e) { return tw_engine_create(options, &made, e); });
  return EngineHandle(made);
}

MemoryHandle memory(const DeviceHandle& device, std::size_t bytes) {
  tw_memory* made = nullptr;
  succeed([&](tw_error** e) { return tw_memory_create(device.get(), bytes, &made, e); });
  return MemoryHandle(made);
}

Scratch::Scratch() : path_((std::filesystem::temp_directory_path() / "tilewright-capi-XXXXXX").string()) {
  REQUIRE(mkdtemp(path_.data()) != nullptr);
}
Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TEST_CASE("every _INIT of the header initializes its struct") { CHECK(header_initializers() == 0); }

TEST_CASE("numbers that an enumeration does not have are refused") {
  int64_t bytes = 0;
  succeed([&](tw_error** e) { return stream_bytes_of_number(TW_DATA, &bytes, e); });
  CHECK(bytes == 4);
  for (const int stream : {-1, 3, 77}) {
    const Failure refused = failure([&](tw_error** e) { return stream_bytes_of_number(stream, &bytes, e); });
    CHECK(refused.field == "stream");
    CHECK(refused.value == std::to_string(stream));
  }
  CHECK(std::string(status_name_of_number(TW_IO)) == "io");
  for (const int status : {-1, 99}) CHECK(std::string(status_name_of_number(status)) == "unknown");
}

}  // namespace tilewright::test
