// SPDX-License-Identifier: Apache-2.0
// Inside of the driver double. One state behind one lock; handles are never freed before the reset, so that use of a
// dead one is recognised instead of crashing.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "jit/driver.h"
#include "support/fake_cuda.h"
#include "support/fake_cuda_image.h"

namespace fake {

using tilewright::jit::CUresult;
using Action = std::function<void()>;

constexpr CUresult kOk = 0, kInvalid = 1, kNoMemory = 2, kNotInitialized = 3, kNoDevice = 100, kInvalidDevice = 101,
                   kInvalidImage = 200, kInvalidContext = 201, kNoBinary = 209, kInvalidHandle = 400, kNotFound = 500,
                   kDestroyed = 709, kCaptureUnsupported = 900, kCaptureInvalidated = 901, kCaptureWrongThread = 908,
                   kCaptureImplicit = 906, kClusterSize = 912;

struct Context;

struct Object {  // anything that belongs to a context
  Context* context = nullptr;
  bool alive = true;
  virtual ~Object() = default;
};

struct Context {
  int device = 0;
  bool active = false;
  int references = 0;
  unsigned long long id = 0;
  CUresult sticky = kOk;
};

struct Function;
struct Module : Object {
  std::vector<Function*> functions;
  std::vector<std::byte> image;
  tilewright::test::FakeImageInfo info;
};
struct Function : Object {
  Module* module = nullptr;
  std::string entry;
  tilewright::test::FakeFunctionInfo info;
  int max_dynamic = 48 << 10;
};
struct FreeAligned {
  void operator()(unsigned char* bytes) const { ::operator delete[](bytes, std::align_val_t{256}); }
};
struct Memory : Object {
  std::unique_ptr<unsigned char[], FreeAligned> bytes;  // aligned as cuMemAlloc does
  std::size_t size = 0;
};
struct Graph : Object {
  std::vector<Action> nodes;
};
struct Exec : Object {
  std::vector<Action> nodes;
};
struct Stream : Object {
  unsigned flags = 0;
  int capture = 0;  // CUstreamCaptureStatus: 0 none, 1 active, 2 invalidated
  int mode = 0;
  std::thread::id thread;
  std::vector<Action> nodes;
};
struct Event : Object {
  bool recorded = false;
  double time = 0;
};

struct Fault {
  int countdown = 0;  // 0: every call
  CUresult code = kOk;
};

struct State {
  std::recursive_mutex mutex;
  std::vector<FakeDevice> devices;
  std::vector<std::string> device_names;
  std::vector<std::unique_ptr<Context>> contexts;  // the primary one of each ordinal; outlive the reset
  unsigned long long next_id = 1;
  int version = 13000;
  bool initialized = false;
  std::unordered_map<void*, std::unique_ptr<Object>> objects;  // by handle, the dead ones too
  std::vector<Stream*> streams;                                // of them, the live ones
  std::map<std::uintptr_t, Memory*> memory;                    // by address, live ones
  std::vector<std::vector<std::byte>> images;
  std::map<std::string, long> calls;
  std::map<std::string, std::vector<Fault>> faults;
  std::vector<std::unique_ptr<std::string>> violations;
  void (*handler)(const FakeLaunch*, void*) = nullptr;
  void* handler_user = nullptr;
  double (*duration)(const FakeLaunch*, void*) = nullptr;
  void* duration_user = nullptr;
  double clock = 0;

  template <class T>
  T* add(Context* context) {
    auto made = std::make_unique<T>();
    T* handle = made.get();
    handle->context = context;
    objects[handle] = std::move(made);
    return handle;
  }
  CUresult violation(const std::string& text, CUresult code);
};

State& state();
std::vector<Context*>& context_stack();  // of this thread

enum Rules : unsigned { kNoContext = 0, kContext = 1, kNotInCapture = 2 };

// Head of every function: takes the lock, counts, and decides whether the call fails before it does anything.
class Entry {
 public:
  Entry(const char* name, unsigned rules);
  CUresult failed = kOk;
  Context* context = nullptr;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

// The object behind a handle if it may be used now, else null and *why is set (and a violation noted).
Object* check_handle(Entry& entry, void* handle, const char* kind, CUresult* why);
template <class T>
T* use(Entry& entry, void* handle, const char* kind, CUresult* why) {
  Object* object = check_handle(entry, handle, kind, why);
  T* typed = dynamic_cast<T*>(object);
  if (object && !typed) *why = state().violation(std::string("not a ") + kind, kInvalidHandle);
  return typed;
}

void kill(Context* context);                                 // everything that belongs to it
CUresult submit(Entry& entry, void* stream, Action action);  // now, or into the stream's capture

}  // namespace fake

#define FAKE_API extern "C" __attribute__((visibility("default"))) int
