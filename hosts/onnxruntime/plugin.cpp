// SPDX-License-Identifier: Apache-2.0
// libtilewright_ort: an execution provider for programs that use ONNX Runtime. docs/use/onnxruntime.md says how to
// register it. Whatever it does not compute is left to ONNX Runtime's own.
#include <tilewright/version.h>

#include <span>
#include <string>

#include "hosts/onnxruntime/ep.h"
#include "hosts/onnxruntime/operations/ggml.h"

namespace tilewright::onnxruntime {
namespace {

class Factory : public OrtEpFactory {
 public:
  explicit Factory(const OrtLogger* logger) : OrtEpFactory{}, kernels_(logger) {
    ort_version_supported = kOrtApi;
    GetName = [](const OrtEpFactory*) noexcept { return kName; };
    GetVendor = [](const OrtEpFactory*) noexcept { return "Tilewright"; };
    GetVendorId = [](const OrtEpFactory*) noexcept { return std::uint32_t{0}; };
    GetVersion = [](const OrtEpFactory*) noexcept -> const char* { return TILEWRIGHT_VERSION_STRING; };
    GetSupportedDevices = [](OrtEpFactory* self, const OrtHardwareDevice* const* devices, std::size_t count,
                             OrtEpDevice** made, std::size_t most, std::size_t* number) noexcept {
      return guarded([&] { *number = static_cast<Factory*>(self)->devices({devices, count}, {made, most}); });
    };
    CreateEp = [](OrtEpFactory* self, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*, std::size_t,
                  const OrtSessionOptions* options, const OrtLogger* logger, OrtEp** ep) noexcept {
      return guarded([&] {
        auto* factory = static_cast<Factory*>(self);
        *ep = new ExecutionProvider(factory->kernels_, factory->registry_.get(), Settings(options), logger);
      });
    };
    ReleaseEp = [](OrtEpFactory*, OrtEp* ep) noexcept { delete static_cast<ExecutionProvider*>(ep); };
    CreateDataTransfer = [](OrtEpFactory*, OrtDataTransferImpl** transfer) noexcept -> OrtStatus* {
      *transfer = nullptr;  // host memory alone
      return nullptr;
    };
    IsStreamAware = [](const OrtEpFactory*) noexcept { return false; };
    GetNumCustomOpDomains = [](OrtEpFactory*, std::size_t* count) noexcept -> OrtStatus* {
      *count = 1;
      return nullptr;
    };
    GetCustomOpDomains = [](OrtEpFactory* self, OrtCustomOpDomain** domains, std::size_t count) noexcept {
      return guarded([&] {
        if (count > 0) domains[0] = static_cast<Factory*>(self)->domain_.get();
      });
    };
    registry_.reset(make_registry(kernels_));
    OrtCustomOpDomain* domain = nullptr;
    check(g_api->CreateCustomOpDomain(kDomain, &domain));
    domain_.reset(domain);
    check(g_api->CustomOpDomain_Add(domain, &ggml_schema()));
  }

 private:
  std::size_t devices(std::span<const OrtHardwareDevice* const> devices, std::span<OrtEpDevice*> made) {
    for (const OrtHardwareDevice* device : devices)
      if (!made.empty() && g_api->HardwareDevice_Type(device) == OrtHardwareDeviceType_CPU) {
        check(g_ep_api->CreateEpDevice(this, device, nullptr, nullptr, &made[0]));
        return 1;
      }
    return 0;
  }

  struct ReleaseRegistry {
    void operator()(OrtKernelRegistry* registry) const { g_ep_api->ReleaseKernelRegistry(registry); }
  };
  struct ReleaseDomain {
    void operator()(OrtCustomOpDomain* domain) const { g_api->ReleaseCustomOpDomain(domain); }
  };
  Kernels kernels_;
  std::unique_ptr<OrtKernelRegistry, ReleaseRegistry> registry_;
  std::unique_ptr<OrtCustomOpDomain, ReleaseDomain> domain_;
};

}  // namespace
}  // namespace tilewright::onnxruntime

extern "C" {

TILEWRIGHT_EXPORT OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base, const OrtLogger* logger,
                                               OrtEpFactory** factories, std::size_t most, std::size_t* number) {
  using namespace tilewright::onnxruntime;
  *number = 0;
  const OrtApi* const api = base->GetApi(kOrtApi);
  if (!api) {
    // Every version has its errors at the same place.
    const std::string text = "libtilewright_ort needs ONNX Runtime 1." + std::to_string(kOrtApi) +
                             " or a later one, and this is " + base->GetVersionString() +
                             "; install a newer onnxruntime";
    const OrtApi* const first = base->GetApi(1);
    return first ? first->CreateStatus(ORT_FAIL, text.c_str()) : nullptr;
  }
  g_api = api;
  g_ep_api = g_api->GetEpApi();
  g_model_api = g_api->GetModelEditorApi();
  return guarded([&] {
    if (most < 1)
      throw tilewright::Error(tilewright::ErrorCode::invalid_argument, "max_factories", "0", "must be at least 1");
    factories[0] = new Factory(logger);
    *number = 1;
  });
}

TILEWRIGHT_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  delete static_cast<tilewright::onnxruntime::Factory*>(factory);
  return nullptr;
}

}  // extern "C"
