// SPDX-License-Identifier: Apache-2.0
// The kernels of an execution provider's factory: prepared once for each shape, launched on ONNX Runtime's threads.
#pragma once

#include <tilewright/engine.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hosts/onnxruntime/ort.h"
#include "hosts/onnxruntime/product.h"

namespace tilewright::onnxruntime {

// Thread-safe.
class Kernels {
 public:
  // `logger` receives the library's warnings. A wrong option in the environment is one of them: then no kernel serves.
  explicit Kernels(const OrtLogger* logger);

  // Throws Error if no kernel but the reference computes it.
  std::shared_ptr<const Product> product(const Spec& spec);
  // What is compiled for products, as a cache file; and the use of such a file, whose code runs in this process.
  std::string compiled_for(const std::vector<Spec>& specs) const;
  void use(const std::string& compiled);
  // Whether ONNX Runtime computes an operation faster on this CPU (docs/use/onnxruntime.md has the measurements).
  bool slower(const std::string& operation) const;

 private:
  const OrtLogger* logger_;
  std::optional<Engine> engine_;
  std::string why_not_;  // there is no engine
  std::optional<Device> launches_, loads_;
  std::mutex mutex_;
  std::map<Spec, std::shared_ptr<const Product>> products_;
};

// While it lives, launches of this thread compute on the threads of the session that calls the kernel.
class OnThreadsOf {
 public:
  explicit OnThreadsOf(const OrtKernelContext* context);
  ~OnThreadsOf();
  OnThreadsOf(const OnThreadsOf&) = delete;
  OnThreadsOf& operator=(const OnThreadsOf&) = delete;

 private:
  const OrtKernelContext* before_;
};

// body(i) for each i from 0 to count - 1, on the threads of OnThreadsOf, or on this one.
void in_parallel(std::int64_t count, const std::function<void(std::int64_t)>& body);

void log(const OrtLogger* logger, OrtLoggingLevel level, const std::string& text);

}  // namespace tilewright::onnxruntime
