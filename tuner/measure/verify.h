// SPDX-License-Identifier: Apache-2.0
// Verifier: no candidate wins that was not held against the reference. Two seeds, two numbers of rows, poisoned
// outputs, canaries around every buffer, inputs unchanged, and a second run that must give the same bits. One thread at
// a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <tilewright/task.h>
#include <tilewright/tuning.h>

#include "jit/device.h"
#include "jit/modules.h"

namespace tilewright::tuner {

struct Verdict {
  OutcomeKind kind = OutcomeKind::measured;  // `measured` stands for "right, go on"; else pruned, wrong or failed
  std::string detail;
  double error = 0;  // largest, relative to the bound
};

class Verifier {
 public:
  // `oracle`: binary of task.oracle(), or null if the task has none. Runs it once per seed. Throws what the driver
  // says.
  Verifier(const Task& task, const Device& device, const jit::BinaryPtr& oracle);

  // Throws only if the device itself has failed and nothing more can run on it.
  Verdict check(const jit::BinaryPtr& binary);

 private:
  // A buffer with a guard band before and behind it.
  struct Guarded {
    jit::Memory memory;
    std::size_t bytes = 0;
    void* data() const;
  };
  struct Trial {
    std::uint64_t seed = 0;
    std::int64_t rows = 0;
    unsigned char poison = 0;
    std::vector<Guarded> buffers;
    std::vector<std::vector<std::byte>> inputs;  // of every input, in order of buffers
    std::vector<std::byte> expected;
  };
  Trial prepare(std::uint64_t seed, std::int64_t rows, unsigned char poison);
  void consult(Trial& trial, const jit::BinaryPtr& oracle);
  std::vector<void*> pointers(const Trial& trial) const;
  // One launch on poisoned outputs; what they hold then. `bad`: why a canary shows that it wrote elsewhere.
  std::vector<std::byte> run(Trial& trial, const Kernel& kernel, std::string& bad);
  std::string changed_input(const Trial& trial) const;
  void restore(Trial& trial);
  Verdict judge(Trial& trial, const Kernel& kernel, bool twice);

  const Task& task_;
  Device device_;
  jit::OwnedStream stream_;
  std::vector<Trial> trials_;
};

}  // namespace tilewright::tuner
