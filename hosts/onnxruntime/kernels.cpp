// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/kernels.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>

namespace tilewright::onnxruntime {
namespace {

thread_local const OrtKernelContext* g_context = nullptr;

// Blocks are claimed one by one, so that a thread that the system delays, delays one block.
struct Blocks {
  const std::function<void(std::int64_t)>& body;
  std::int64_t count;
  std::atomic<std::int64_t> next{0};

  static void compute(void* blocks, std::size_t) {
    auto& all = *static_cast<Blocks*>(blocks);
    for (std::int64_t i; (i = all.next.fetch_add(1, std::memory_order_relaxed)) < all.count;) all.body(i);
  }
};

// A folder that nobody else may read, while it lives.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "tilewright-XXXXXX";
    if (!::mkdtemp(name.data())) throw Error(ErrorCode::io, "folder", name, "cannot be created");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

OnThreadsOf::OnThreadsOf(const OrtKernelContext* context) : before_(std::exchange(g_context, context)) {}
OnThreadsOf::~OnThreadsOf() { g_context = before_; }

void in_parallel(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  static const std::int64_t most = std::max(1u, std::thread::hardware_concurrency());
  Blocks blocks{body, count};
  if (g_context && count > 1)
    succeeded(g_api->KernelContext_ParallelFor(g_context, &Blocks::compute,
                                               static_cast<std::size_t>(std::min(count, most)), 0, &blocks));
  Blocks::compute(&blocks, 0);  // what is left if there are no threads
}

void log(const OrtLogger* logger, OrtLoggingLevel level, const std::string& text) {
  if (logger) succeeded(g_api->Logger_LogMessage(logger, level, text.c_str(), __FILE_NAME__, 0, "tilewright"));
}

Kernels::Kernels(const OrtLogger* logger) : logger_(logger) {
  try {
    Options options = Options::from_env();
    if (!options.log) {
      options.log_level = LogLevel::warning;
      options.log = [logger](LogLevel, std::string_view text) {
        onnxruntime::log(logger, ORT_LOGGING_LEVEL_WARNING, "tilewright: " + std::string(text));
      };
    }
    engine_.emplace(std::move(options));
    launches_ = Device::open_cpu({.parallel_for = in_parallel});
    loads_ = Device::open_cpu();
  } catch (const std::exception& e) {
    engine_.reset();
    why_not_ = e.what();
    onnxruntime::log(logger, ORT_LOGGING_LEVEL_WARNING, "tilewright: " + why_not_);
  }
}

std::string Kernels::compiled_for(const std::vector<Spec>& specs) const {
  if (!engine_) throw Error(ErrorCode::unsupported, "Tilewright", "", "cannot be used: " + why_not_);
  const Folder folder;
  Options options = engine_->options();
  options.cache = folder.path() / "cache.db";
  options.shipped.clear();  // what is found there would not be in the file
  options.cache_read_only = false;
  Engine engine(options);
  for (const Spec& spec : specs) Product(engine, *launches_, *loads_, spec);
  const std::filesystem::path file = folder.path() / "compiled.db";
  engine.store().export_to(file);
  std::ifstream in(file, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  if (!in) throw Error(ErrorCode::io, "file", file, "cannot be read");
  return bytes;
}

void Kernels::use(const std::string& compiled) {
  if (!engine_) return;
  const Folder folder;
  const std::filesystem::path file = folder.path() / "compiled.db";
  std::ofstream out(file, std::ios::binary);
  out.write(compiled.data(), static_cast<std::streamsize>(compiled.size()));
  out.close();
  if (!out) throw Error(ErrorCode::io, "file", file, "cannot be written");
  engine_->store().merge_from(file);
}

// MLAS sums bytes in AMX tiles over the whole of k.
bool Kernels::slower(const std::string& operation) const {
  return launches_ && std::string_view(launches_->arch().name).find("amx") != std::string_view::npos &&
         (operation == "MatMulInteger" || operation == "QLinearMatMul");
}

std::shared_ptr<const Product> Kernels::product(const Spec& spec) {
  if (!engine_) throw Error(ErrorCode::unsupported, "Tilewright", "", "cannot be used: " + why_not_);
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Product>& found = products_[spec];
  if (!found) found = std::make_shared<const Product>(*engine_, *launches_, *loads_, spec);
  return found;
}

}  // namespace tilewright::onnxruntime
