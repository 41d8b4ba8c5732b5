// SPDX-License-Identifier: Apache-2.0
// GPTQ as steps that a machine with memory of its own carries out: a device, or in tests the emulator.
#pragma once

#include <tilewright/gptq.h>

#include <cstddef>
#include <cstdint>

namespace tilewright::quantize {

class GptqMachine {
 public:
  virtual ~GptqMachine() = default;
  // Lives as long as the machine. `bytes` may be 0.
  virtual void* allocate(std::size_t bytes) = 0;
  // These concern what an allocation has from its first byte on, and wait for launches.
  virtual void clear(void* all) = 0;
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  // Once, before the first launch.
  virtual void begin(const GptqLayer& layer) = 0;
  virtual void launch(const GptqArgs& args, std::int64_t blocks) = 0;
};

QuantizedLinear gptq(GptqMachine& machine, const LinearWeight& layer, const Hessian& hessian,
                     const QuantizeTarget& target, const GptqOptions& options);

}  // namespace tilewright::quantize
