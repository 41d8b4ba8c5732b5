// SPDX-License-Identifier: Apache-2.0
#include "bench/rivals/cudnn_backend.h"

#include "bench/rivals/rival.h"

namespace tilewright::bench {

Cudnn::Cudnn(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Cudnn::~Cudnn() {
  if (impl_ && impl_->handle) impl_->destroy(impl_->handle);
}
const std::string& Cudnn::path() const { return impl_->path(); }
std::string Cudnn::version() const { return version_text(impl_->version()); }

std::unique_ptr<Cudnn> Cudnn::open(const Device& device, const std::string& nvrtc, std::string& why) {
  static constexpr const char* kNames[] = {"libcudnn.so.9"};
  why = "not found; TILEWRIGHT_CUDNN may name it";
  for (const std::string& path : library_places("TILEWRIGHT_CUDNN", kNames, "cudnn", nvrtc)) {
    auto impl = std::make_unique<Impl>();
    if (!impl->open(path, why)) continue;
    if (!impl->load()) {
      why = fmt::format("{} has no {}", path, impl->missing());
      continue;
    }
    if (const int status = impl->create(&impl->handle)) {
      why = fmt::format("{}: cudnnCreate: {}", path, impl->reason(status));
      impl->handle = nullptr;
      continue;
    }
    impl->workspace = Memory(device, cudnn::kWorkspaceBytes);
    why.clear();
    return std::unique_ptr<Cudnn>(new Cudnn(std::move(impl)));
  }
  return nullptr;
}

}  // namespace tilewright::bench
