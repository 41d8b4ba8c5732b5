// SPDX-License-Identifier: Apache-2.0
// The kernels of a process: prepared at first use, for each number of threads that the host asks for.
#pragma once

#include <tilewright/engine.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "hosts/ggml/convolution.h"
#include "hosts/ggml/product.h"

namespace tilewright::ggml {

// Thread-safe. Never destroyed: a host's buffers outlive main().
class Kernels {
 public:
  static Kernels& of_process();
  Engine* engine() { return engine_ ? &*engine_ : nullptr; }  // null: its options are wrong
  const std::string& driver() const { return driver_; }       // of GPUs (Options::driver)

  // Both return null if no kernel serves it. `threads`: of its launches; 0: one for each CPU that the process may use.
  // What one product packs, those of the same shape for other threads launch.
  const Product* product(ggml_type type, std::int64_t n, std::int64_t k, int threads = 0);
  const Convolution* convolution(const ggml_tensor* op, int threads = 0);

 private:
  Kernels();
  const Device& device(int threads);
  template <class Kernel, class Key, class... Args>
  const Kernel* find(std::map<std::pair<Key, int>, std::unique_ptr<Kernel>>& kernels, const Key& key, int threads,
                     const Args&... args);

  void warn(const char* reason);

  std::string driver_;
  std::optional<Engine> engine_;  // none: its options are wrong, and no kernel serves
  bool warned_ = false;
  std::mutex mutex_;
  std::map<int, Device> devices_;  // by threads
  using Shape = std::tuple<ggml_type, std::int64_t, std::int64_t>;
  std::map<std::pair<Shape, int>, std::unique_ptr<Product>> products_;
  std::map<std::pair<std::string, int>, std::unique_ptr<Convolution>> convolutions_;
};

}  // namespace tilewright::ggml
