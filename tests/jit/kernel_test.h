// SPDX-License-Identifier: Apache-2.0
// A kernel on the driver double with a gemm's contract, and what its last launch was given.
#pragma once

#include <tilewright/cast.h>
#include <tilewright/gemm.h>
#include <tilewright/pack.h>

#include <string>

#include "fake_test.h"

namespace tilewright::test {

struct Seen {
  int launches = 0;
  FakeLaunch last{};
  std::string entry;
  GemmArgs args{};
  std::uint64_t constant = 0;
};

inline void look(const FakeLaunch* launch, void* user) {
  auto& seen = *static_cast<Seen*>(user);
  ++seen.launches;
  seen.last = *launch;
  seen.entry = launch->entry;
  if (launch->param_count > 0 && launch->param_bytes[0] == sizeof(GemmArgs))
    std::memcpy(&seen.args, launch->params[0], sizeof(GemmArgs));
  if (launch->param_count > 1) std::memcpy(&seen.constant, launch->params[1], sizeof(seen.constant));
}

inline Contract gemm_contract() {
  Contract contract;
  contract.op = "gemm";
  contract.args_bytes = sizeof(GemmArgs);
  contract.pointers = {{"x.data", offsetof(GemmArgs, x), 16, true},
                       {"y", offsetof(GemmArgs, y), 16, true},
                       {"bias", offsetof(GemmArgs, bias), 16, false}};
  contract.strides = {{"ldx", offsetof(GemmArgs, ldx), 64, 32}, {"ldy", offsetof(GemmArgs, ldy), 96, 1}};
  contract.constants.resize(8, std::byte{7});
  contract.rows_at = offsetof(GemmArgs, m);
  contract.rows_name = "m";
  contract.cols = 96;
  return contract;
}

inline Binary gemm_binary(const std::string& entry = "k") {
  Binary binary = fake_binary({sizeof(GemmArgs), 8}, entry);
  binary.plan = {.x = {1, 16, 0}, .y = {1, 0, 32}, .z = {2, 0, 0}, .threads = 256, .cluster = 1, .shared_bytes = 64};
  return binary;
}

// Device, a kernel with that contract, and arguments that satisfy it.
struct GemmCase : Fake {
  GemmCase() {
    fake_cuda_set_launch_handler(look, &seen);
    args.x.data = x.data();
    args.y = y.data();
    args.m = 33;
  }
  Error refused(ErrorCode code = ErrorCode::invalid_argument) {
    const int before = seen.launches;
    const auto error = error_of(code, [&] { kernel.launch(nullptr, args); });
    CHECK(seen.launches == before);
    return error;
  }
  static Kernel make(const Device& device) {
    const Binary binary = gemm_binary();
    const int first[] = {0};
    return Kernel(device, {&binary, 1}, first, gemm_contract());
  }

  Seen seen;
  Device device = open();
  jit::Memory x{device, 4096}, y{device, 4096};
  Kernel kernel = make(device);
  GemmArgs args;
};

}  // namespace tilewright::test
