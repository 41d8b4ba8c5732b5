// SPDX-License-Identifier: Apache-2.0
// Control functions and the common head of every call. The driver's own functions: fake_cuda_api.cpp, _work.cpp.
#include "support/fake_cuda.h"

#include <algorithm>
#include <cstdlib>

#include "support/fake_cuda_state.h"

namespace fake {
namespace {

constexpr FakeDevice kH200 = {"NVIDIA H200 (double)", 9, 0, 132, 232448, 65536, 150754820096, 62914560};

bool sticky(CUresult code) {
  constexpr CUresult kSticky[] = {226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721};
  return std::find(std::begin(kSticky), std::end(kSticky), code) != std::end(kSticky);
}

CUresult scripted(State& s, const std::string& name) {
  for (Fault& fault : s.faults[name]) {
    if (fault.countdown == 0) return fault.code;
    if (fault.countdown > 0 && --fault.countdown == 0) {
      fault.countdown = -1;  // spent
      return fault.code;
    }
  }
  return kOk;
}

void resize(State& s, int count) {
  s.devices.resize(count, kH200);
  s.device_names.resize(count, kH200.name);
  while (static_cast<int>(s.contexts.size()) < count) {
    s.contexts.push_back(std::make_unique<Context>());
    s.contexts.back()->device = static_cast<int>(s.contexts.size()) - 1;
  }
}

}  // namespace

State& state() {
  static State* const s = [] {
    auto* made = new State;  // never destroyed: destructors of static objects may still call
    resize(*made, 2);
    return made;
  }();
  return *s;
}

std::vector<Context*>& context_stack() {
  static thread_local std::vector<Context*> stack;
  return stack;
}

CUresult State::violation(const std::string& text, CUresult code) {
  violations.push_back(std::make_unique<std::string>(text));
  return code;
}

Entry::Entry(const char* name, unsigned rules) : lock_(state().mutex) {
  State& s = state();
  ++s.calls[name];
  auto& stack = context_stack();
  context = stack.empty() ? nullptr : stack.back();
  failed = scripted(s, name);
  if (failed == kFakeAbort) std::abort();
  if (failed != kOk) {
    if (sticky(failed) && context) context->sticky = failed;
    return;
  }
  if (!(rules & kContext)) return;
  if (!context) {
    failed = kInvalidContext;
  } else if (!context->active) {
    failed = kDestroyed;
  } else if (context->sticky != kOk) {
    failed = context->sticky;
  } else if (rules & kNotInCapture) {
    for (Stream* stream : s.streams) {
      const bool here = stream->capture == 1 &&
                        (stream->mode == 0 || (stream->mode == 1 && stream->thread == std::this_thread::get_id()));
      if (here) stream->capture = 2, failed = kCaptureUnsupported;
    }
  }
}

Object* check_handle(Entry& entry, void* handle, const char* kind, CUresult* why) {
  State& s = state();
  const auto found = s.objects.find(handle);
  if (found == s.objects.end()) {
    *why = s.violation(std::string("unknown ") + kind + " handle", kInvalidHandle);
  } else if (!found->second->alive) {
    *why = s.violation(std::string("use of a dead ") + kind, kInvalidHandle);
  } else if (entry.context && found->second->context != entry.context) {
    *why = kInvalidHandle;
  } else {
    return found->second.get();
  }
  return nullptr;
}

void kill(Context* context) {
  State& s = state();
  std::erase_if(s.streams, [&](const Stream* stream) { return stream->context == context; });
  for (auto& [handle, object] : s.objects) {
    if (object->context != context || !object->alive) continue;
    object->alive = false;
    if (auto* memory = dynamic_cast<Memory*>(object.get())) {
      s.memory.erase(reinterpret_cast<std::uintptr_t>(memory->bytes.get()));
      memory->bytes.reset();
    }
  }
  context->active = false;
  context->references = 0;
  context->sticky = kOk;
}

CUresult submit(Entry& entry, void* handle, Action action) {
  if (!handle) {
    for (Stream* stream : state().streams) {
      const bool waits = stream->context == entry.context && stream->flags == 0;
      if (waits && stream->capture == 1) return stream->capture = 2, kCaptureImplicit;
    }
    action();
    return kOk;
  }
  CUresult why = kOk;
  auto* stream = use<Stream>(entry, handle, "stream", &why);
  if (!stream) return why;
  if (stream->capture == 2) return kCaptureInvalidated;
  if (stream->capture == 1) {
    stream->nodes.push_back(std::move(action));
  } else {
    action();
  }
  return kOk;
}

}  // namespace fake

using fake::state;

extern "C" {

void fake_cuda_reset() {
  auto& s = state();
  const std::lock_guard lock(s.mutex);
  for (auto& context : s.contexts) fake::kill(context.get());
  s.devices.clear();
  s.device_names.clear();
  fake::resize(s, 2);
  s.version = 13000;
  s.initialized = false;
  s.images.clear();
  s.calls.clear();
  s.faults.clear();
  s.violations.clear();
  s.handler = nullptr;
  s.duration = nullptr;
  s.clock = 0;
}

void fake_cuda_set_device_count(int count) {
  const std::lock_guard lock(state().mutex);
  fake::resize(state(), count);
}

void fake_cuda_set_device(int ordinal, const FakeDevice* device) {
  const std::lock_guard lock(state().mutex);
  state().devices.at(ordinal) = *device;
  state().device_names.at(ordinal) = device->name;
}

void fake_cuda_set_version(int version) {
  const std::lock_guard lock(state().mutex);
  state().version = version;
}

void fake_cuda_set_launch_handler(void (*handler)(const FakeLaunch*, void*), void* user) {
  const std::lock_guard lock(state().mutex);
  state().handler = handler;
  state().handler_user = user;
}

void fake_cuda_set_duration(double (*duration)(const FakeLaunch*, void*), void* user) {
  const std::lock_guard lock(state().mutex);
  state().duration = duration;
  state().duration_user = user;
}

double fake_cuda_clock() {
  const std::lock_guard lock(state().mutex);
  return state().clock;
}

void fake_cuda_fail(const char* function, int nth, int code) {
  const std::lock_guard lock(state().mutex);
  state().faults[function].push_back({nth, code});
}

void fake_cuda_fault(int device, int code) {
  const std::lock_guard lock(state().mutex);
  state().contexts.at(device)->sticky = code;
}

void fake_cuda_reset_device(int ordinal) {
  const std::lock_guard lock(state().mutex);
  fake::kill(state().contexts.at(ordinal).get());
}

long fake_cuda_calls(const char* function) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().calls.find(function);
  return found == state().calls.end() ? 0 : found->second;
}

std::size_t fake_cuda_image_count() {
  const std::lock_guard lock(state().mutex);
  return state().images.size();
}

const void* fake_cuda_image(std::size_t index, std::size_t* bytes) {
  const std::lock_guard lock(state().mutex);
  *bytes = state().images.at(index).size();
  return state().images.at(index).data();
}

long fake_cuda_live(const char* kind) {
  auto& s = state();
  const std::lock_guard lock(s.mutex);
  const std::string k = kind;
  auto matches = [&](fake::Object* o) {
    return k == "memory"   ? dynamic_cast<fake::Memory*>(o) != nullptr
           : k == "module" ? dynamic_cast<fake::Module*>(o) != nullptr
           : k == "stream" ? dynamic_cast<fake::Stream*>(o) != nullptr
           : k == "event"  ? dynamic_cast<fake::Event*>(o) != nullptr
                           : dynamic_cast<fake::Graph*>(o) || dynamic_cast<fake::Exec*>(o);
  };
  if (k == "context")
    return std::count_if(s.contexts.begin(), s.contexts.end(), [](const auto& c) { return c->active; });
  return std::count_if(s.objects.begin(), s.objects.end(),
                       [&](const auto& o) { return o.second->alive && matches(o.second.get()); });
}

std::size_t fake_cuda_violation_count() {
  const std::lock_guard lock(state().mutex);
  return state().violations.size();
}

const char* fake_cuda_violation(std::size_t index) {
  const std::lock_guard lock(state().mutex);
  return state().violations.at(index)->c_str();
}

int fake_cuda_current_device() {
  const auto& stack = fake::context_stack();
  return stack.empty() ? -1 : stack.back()->device;
}

void fake_cuda_push_context(int ordinal) {
  const std::lock_guard lock(state().mutex);
  fake::context_stack().push_back(state().contexts.at(ordinal).get());
}

void fake_cuda_pop_context() { fake::context_stack().pop_back(); }
}
