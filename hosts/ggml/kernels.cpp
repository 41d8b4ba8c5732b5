// SPDX-License-Identifier: Apache-2.0
#include "hosts/ggml/kernels.h"

#include <tilewright/error.h>

#include <cstdlib>
#include <exception>
#include <string_view>
#include <utility>

#include "ggml-impl.h"
#include "hosts/ggml/team.h"

namespace tilewright::ggml {

Kernels& Kernels::of_process() {
  static Kernels* kernels = new Kernels();
  return *kernels;
}

Kernels::Kernels() {
  try {
    Options options = Options::from_env();
    if (!options.log) {
      options.log_level = LogLevel::warning;
      options.log = [](LogLevel, std::string_view text) {
        GGML_LOG_WARN("tilewright: %.*s\n", static_cast<int>(text.size()), text.data());
      };
    }
    driver_ = options.driver;
    engine_.emplace(std::move(options));
  } catch (const std::exception& e) {
    warn(e.what());
  }
}

// Once: the reason is that of every product, and ggml asks about thousands.
void Kernels::warn(const char* reason) {
  if (!std::exchange(warned_, true)) GGML_LOG_WARN("tilewright: %s; ggml's own kernels compute instead\n", reason);
}

// Launches compute on the threads of the team that launches, and what packs weights, outside of any team, on new ones.
const Device& Kernels::device(int threads) {
  const auto at = devices_.find(threads);
  if (at != devices_.end()) return at->second;
  const auto parallel_for = [](std::int64_t count, const Team::Body& body) {
    if (g_team)
      g_team->run(count, body);
    else
      run_on_new_threads(count, body);
  };
  const char* const target = std::getenv("GGML_TILEWRIGHT_TARGET");
  return devices_
      .emplace(threads,
               Device::open_cpu({.threads = threads, .parallel_for = parallel_for, .target = target ? target : ""}))
      .first->second;
}

template <class Kernel, class Key, class... Args>
const Kernel* Kernels::find(std::map<std::pair<Key, int>, std::unique_ptr<Kernel>>& kernels, const Key& key,
                            int threads, const Args&... args) {
  const std::lock_guard lock(mutex_);
  if (!engine_) return nullptr;
  try {
    const Device& on = device(threads);
    const auto [at, added] = kernels.try_emplace({key, on.sms()});
    if (added) at->second = std::make_unique<Kernel>(*engine_, on, args...);
    return at->second.get();
  } catch (const Error& e) {
    if (e.code() == ErrorCode::unsupported)
      GGML_LOG_DEBUG("tilewright: %s\n", e.what());
    else
      warn(e.what());
  } catch (const std::exception& e) {
    warn(e.what());
  }
  return nullptr;
}

const Product* Kernels::product(ggml_type type, std::int64_t n, std::int64_t k, int threads) {
  if (!format_of(type) || n < 1 || k < 1) return nullptr;
  return find(products_, Shape{type, n, k}, threads, type, n, k);
}

const Convolution* Kernels::convolution(const ggml_tensor* op, int threads) {
  const std::string text = convolution_text(op, op->src[1]->type);
  return text.empty() ? nullptr : find(convolutions_, text, threads, text);
}

}  // namespace tilewright::ggml
