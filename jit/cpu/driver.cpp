// SPDX-License-Identifier: Apache-2.0
#include "jit/cpu/driver.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <tilewright/host_archs.h>

#include "jit/context.h"
#include "jit/cpu/memory.h"
#include "jit/cpu/object.h"
#include "jit/elf.h"
#include "jit/kernel.h"
#include "support/must_be.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tilewright {
namespace jit::cpu {
namespace {

constexpr std::size_t kAlign = 64, kHugePage = 2u << 20;
constexpr std::size_t kUnit = CpuLaunch::kUnit;

// A kernel, ready to run.
struct Function {
  const Context* context;
  std::function<CpuFunction> first, run, parts;
};
struct Loaded {
  std::unique_ptr<Code> code;
  Function function;
  std::string entry;
};

thread_local std::vector<CUcontext> contexts;  // launches nest as deeply as a host's work

CUresult context_current(CUcontext* context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return 0;
}
CUresult context_push(CUcontext context) {
  contexts.push_back(context);
  return 0;
}
CUresult context_pop(CUcontext* context) {
  if (contexts.empty()) return kInvalidValue;
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}
CUresult context_id(CUcontext context, unsigned long long* id) {
  *id = reinterpret_cast<const Context*>(context)->id;
  return 0;
}

CUresult succeed() { return 0; }

// Linux gives a process the registers of AMX's tiles when it asks, once, for all its threads.
void ask_for_tiles(const std::string& entry) {
#if defined(__x86_64__)
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  if (::syscall(SYS_arch_prctl, kRequest, kTileData) == 0) return;
  throw Error(ErrorCode::driver_failed, "kernel", entry,
              fmt::format("cannot use AMX: the system refuses its registers to the process: {}", std::strerror(errno)));
#endif
}

// ---- modules. `binary`: a Binary, not its image (Module).

CUresult module_load(CUmodule* module, const void* binary) {
  const Binary& b = *static_cast<const Binary*>(binary);
  auto loaded = std::make_unique<Loaded>();
  loaded->entry = b.entry;
  CUcontext context = nullptr;
  context_current(&context);
  Function& f = loaded->function;
  f.context = reinterpret_cast<const Context*>(context);
  if (b.plan.cpu && b.plan.cpu->needs_amx) ask_for_tiles(b.entry);
  if (b.host) {
    f.first = b.host->first, f.run = b.host->run, f.parts = b.host->parts;
  } else {
    loaded->code = std::make_unique<Code>(read_object(b.image));
    f.run = reinterpret_cast<CpuFunction*>(loaded->code->at(b.entry));
    if (void* first = loaded->code->at(b.entry + "_first")) f.first = reinterpret_cast<CpuFunction*>(first);
    if (void* parts = loaded->code->at(b.entry + "_parts")) f.parts = reinterpret_cast<CpuFunction*>(parts);
  }
  *module = reinterpret_cast<CUmodule>(loaded.release());
  return 0;
}
CUresult module_unload(CUmodule module) {
  delete reinterpret_cast<Loaded*>(module);
  return 0;
}
CUresult module_function(CUfunction* function, CUmodule module, const char* name) {
  auto* loaded = reinterpret_cast<Loaded*>(module);
  if (loaded->entry != name || !loaded->function.run) return kInvalidValue;
  *function = reinterpret_cast<CUfunction>(&loaded->function);
  return 0;
}
CUresult function_attribute(int* value, int which, CUfunction) {
  *value = which == kFuncMaxThreads ? 1 : 0;
  return 0;
}

// ---- launches

// Memory for the first phase's results.
class Scratch {
 public:
  Scratch() = default;
  Scratch(Scratch&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch() { ::free(memory_); }
  void* of(std::size_t bytes) {
    if (bytes > size_) {
      ::free(memory_);
      size_ = 0;
      memory_ = ::aligned_alloc(kHugePage > bytes ? 4096 : kHugePage, (bytes + kHugePage - 1) / kHugePage * kHugePage);
      if (!memory_)
        throw Error(ErrorCode::driver_failed, "launch", fmt::format("{} bytes", bytes),
                    "failed: there is no memory for the quantized rows of x");
      size_ = bytes;
    }
    return memory_;
  }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

// One launch's Scratch. A thread keeps those that it returns for its next launches. Launches overlap, also on one
// thread: while a host's parallel_for waits for its workers, it may run other work of the host's, which launches
// kernels.
class Borrowed {
 public:
  Borrowed() {
    if (kept().empty()) return;
    scratch_.emplace(std::move(kept().back()));
    kept().pop_back();
  }
  ~Borrowed() {
    try {
      if (scratch_) kept().push_back(std::move(*scratch_));
    } catch (const std::bad_alloc&) {
      // Then it is freed.
    }
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  void* of(std::size_t bytes) { return (scratch_ ? *scratch_ : scratch_.emplace()).of(bytes); }

 private:
  static std::vector<Scratch>& kept() {
    thread_local std::vector<Scratch> list;
    return list;
  }
  std::optional<Scratch> scratch_;
};

// Kernels are to give the same bits whatever rounding and treatment of subnormal numbers the thread has.
class PlainFloats {
 public:
#if defined(__x86_64__)
  PlainFloats() : saved_(_mm_getcsr()) {
    if (saved_ != kPlain) _mm_setcsr(kPlain);
  }
  ~PlainFloats() {
    if (saved_ != kPlain) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kPlain = 0x1f80;
  const unsigned saved_;
#elif defined(__aarch64__)
  PlainFloats() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) __asm__ volatile("msr fpcr, %0" ::"r"(std::uint64_t{0}));
  }
  ~PlainFloats() {
    if (saved_ != 0) __asm__ volatile("msr fpcr, %0" ::"r"(saved_));
  }

 private:
  std::uint64_t saved_ = 0;
#endif
};

struct Phase {
  const std::function<CpuFunction>& function;
  const void *args, *constants;
  void* scratch;
  static void block(void* phase, std::int64_t i) {
    const Phase& p = *static_cast<const Phase*>(phase);
    const PlainFloats plain;
    p.function(p.args, p.constants, p.scratch, i);
  }
};

// Parts whose blocks are computed at once. An end is counted from the first of them.
struct Piece {
  const void* args;
  std::byte* scratch;
  std::int64_t first_end, end;
};
struct Pieces {
  const std::function<CpuFunction>& function;
  const void* constants;
  std::span<const Piece> pieces;
  std::int64_t Piece::*end;
  static void block(void* phase, std::int64_t i) {
    const Pieces& p = *static_cast<const Pieces*>(phase);
    const auto at = std::upper_bound(p.pieces.begin(), p.pieces.end(), i,
                                     [&](std::int64_t v, const Piece& piece) { return v < piece.*p.end; });
    const std::int64_t before = at == p.pieces.begin() ? 0 : at[-1].*p.end;
    const PlainFloats plain;
    p.function(at->args, p.constants, at->scratch, i - before);
  }
};
// Parts share a phase as long as what their first phases write fits in so much, but for one that alone needs more.
constexpr std::size_t kMostShared = 32u << 20;

void launch_parts(const Function& f, const CUlaunchConfig& config, void** parameters) {
  Borrowed table_memory, memory;
  std::vector<Piece> pieces;
  const std::size_t each = std::size_t{config.shared_bytes} / config.grid_y * kUnit;
  auto* const table = static_cast<std::byte*>(table_memory.of(std::size_t{config.shared_bytes} * kUnit));
  f.parts(parameters[0], parameters[1], table, 0);
  const auto part = [&](unsigned i) { return reinterpret_cast<const CpuPart*>(table + i * each); };
  const auto bytes = [&](unsigned i) { return static_cast<std::size_t>(part(i)->scratch) * kUnit; };
  Pool& pool = const_cast<Context*>(f.context)->pool;
  for (unsigned first = 0, last = 0; first < config.grid_y; first = last) {
    std::size_t all = 0;
    do all += bytes(last++);
    while (last < config.grid_y && all + bytes(last) <= kMostShared);
    auto* scratch = static_cast<std::byte*>(memory.of(all));
    std::int64_t first_end = 0, end = 0;
    pieces.clear();
    for (unsigned i = first; i < last; scratch += bytes(i++))
      if (part(i)->blocks > 0)
        pieces.push_back({part(i) + 1, scratch, first_end += part(i)->first_blocks, end += part(i)->blocks});
    if (f.first) {
      Pieces phase{f.first, parameters[1], pieces, &Piece::first_end};
      pool.run(first_end, &Pieces::block, &phase);
    }
    Pieces phase{f.run, parameters[1], pieces, &Piece::end};
    pool.run(end, &Pieces::block, &phase);
  }
}

// Memory streams are this one stream: work on it is complete when it was enqueued.
int own_stream = 0;

[[noreturn]] void refuse_stream(CUstream stream) {
  throw must_be("stream", fmt::format("{}", static_cast<const void*>(stream)),
                "null: a launch on a CPU is complete when it returns");
}

CUresult launch(const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
  if (config->stream && config->stream != reinterpret_cast<CUstream>(&own_stream)) refuse_stream(config->stream);
  const Function& f = *reinterpret_cast<const Function*>(function);
  if (f.parts) {
    launch_parts(f, *config, parameters);
    return 0;
  }
  Borrowed scratch;
  // A kernel without a first phase has no scratch memory either.
  void* const shared = f.first ? scratch.of(std::size_t{config->shared_bytes} * kUnit) : nullptr;
  Pool& pool = const_cast<Context*>(f.context)->pool;
  if (f.first) {
    Phase phase{f.first, parameters[0], parameters[1], shared};
    pool.run(config->grid_y, &Phase::block, &phase);
  }
  Phase phase{f.run, parameters[0], parameters[1], shared};
  pool.run(config->grid_x, &Phase::block, &phase);
  return 0;
}

// ---- memory, streams, events

CUresult memory_allocate(CUdeviceptr* pointer, std::size_t bytes) {
  const bool large = bytes >= 2 * kHugePage;
  const std::size_t align = large ? kHugePage : kAlign;
  if (bytes > std::numeric_limits<std::size_t>::max() - align) return kOutOfMemory;
  void* memory = ::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (!memory) return kOutOfMemory;
  if (large) ::madvise(memory, bytes, MADV_HUGEPAGE);
  *pointer = reinterpret_cast<CUdeviceptr>(memory);
  return 0;
}
CUresult memory_free(CUdeviceptr pointer) {
  ::free(reinterpret_cast<void*>(pointer));
  return 0;
}
CUresult copy_to_device(CUdeviceptr to, const void* from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
CUresult copy_to_host(void* to, CUdeviceptr from, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
CUresult copy_on_device(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}
CUresult memory_set(CUdeviceptr to, unsigned char byte, std::size_t bytes) {
  std::memset(reinterpret_cast<void*>(to), byte, bytes);
  return 0;
}
CUresult memory_info(std::size_t* free, std::size_t* total) {
  const HostMemory memory = host_memory();
  *free = memory.free, *total = memory.total;
  return memory.total ? 0 : kInvalidValue;
}
CUresult pointer_attributes(unsigned count, int* which, void** values, CUdeviceptr) {
  for (unsigned i = 0; i < count; ++i)  // any memory will do
    *static_cast<int*>(values[i]) = which[i] == kPointerMemoryType ? kMemoryTypeDevice
                                    : which[i] == kPointerOrdinal  ? -1
                                                                   : 0;
  return 0;
}
CUresult stream_create(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(&own_stream);
  return 0;
}
CUresult stream_done(CUstream) { return 0; }
CUresult stream_capturing(CUstream, int* status) {
  *status = 0;
  return 0;
}

using Clock = std::chrono::steady_clock;
CUresult event_create(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(new Clock::time_point(Clock::now()));
  return 0;
}
CUresult event_destroy(CUevent event) {
  delete reinterpret_cast<Clock::time_point*>(event);
  return 0;
}
CUresult event_record(CUevent event, CUstream) {
  *reinterpret_cast<Clock::time_point*>(event) = Clock::now();
  return 0;
}
CUresult event_synchronize(CUevent) { return 0; }
CUresult event_elapsed(float* milliseconds, CUevent start, CUevent end) {
  const auto time = *reinterpret_cast<Clock::time_point*>(end) - *reinterpret_cast<Clock::time_point*>(start);
  *milliseconds = std::chrono::duration<float, std::milli>(time).count();
  return 0;
}

CUresult error_name(CUresult result, const char** name) {
  *name = result == kOutOfMemory ? "out of memory" : "invalid value";
  return 0;
}
CUresult error_text(CUresult result, const char** text) {
  *text = result == kOutOfMemory ? "the system has not as much memory" : "no such function or memory";
  return 0;
}

}  // namespace

void* driver_function(const char* name) {
  static const struct {
    std::string_view name;
    void* function;
  } kFunctions[] = {
      {"cuGetErrorName", reinterpret_cast<void*>(&error_name)},
      {"cuGetErrorString", reinterpret_cast<void*>(&error_text)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(&context_current)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(&context_push)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(&context_pop)},
      {"cuCtxGetId", reinterpret_cast<void*>(&context_id)},
      {"cuCtxSynchronize", reinterpret_cast<void*>(&succeed)},
      {"cuModuleLoadData", reinterpret_cast<void*>(&module_load)},
      {"cuModuleUnload", reinterpret_cast<void*>(&module_unload)},
      {"cuModuleGetFunction", reinterpret_cast<void*>(&module_function)},
      {"cuFuncGetAttribute", reinterpret_cast<void*>(&function_attribute)},
      {"cuLaunchKernelEx", reinterpret_cast<void*>(&launch)},
      {"cuMemAlloc", reinterpret_cast<void*>(&memory_allocate)},
      {"cuMemFree", reinterpret_cast<void*>(&memory_free)},
      {"cuMemcpyHtoD", reinterpret_cast<void*>(&copy_to_device)},
      {"cuMemcpyDtoH", reinterpret_cast<void*>(&copy_to_host)},
      {"cuMemcpyDtoD", reinterpret_cast<void*>(&copy_on_device)},
      {"cuMemsetD8", reinterpret_cast<void*>(&memory_set)},
      {"cuMemGetInfo", reinterpret_cast<void*>(&memory_info)},
      {"cuPointerGetAttributes", reinterpret_cast<void*>(&pointer_attributes)},
      {"cuStreamCreate", reinterpret_cast<void*>(&stream_create)},
      {"cuStreamDestroy", reinterpret_cast<void*>(&stream_done)},
      {"cuStreamSynchronize", reinterpret_cast<void*>(&stream_done)},
      {"cuStreamIsCapturing", reinterpret_cast<void*>(&stream_capturing)},
      {"cuEventCreate", reinterpret_cast<void*>(&event_create)},
      {"cuEventDestroy", reinterpret_cast<void*>(&event_destroy)},
      {"cuEventRecord", reinterpret_cast<void*>(&event_record)},
      {"cuEventSynchronize", reinterpret_cast<void*>(&event_synchronize)},
      {"cuEventElapsedTime", reinterpret_cast<void*>(&event_elapsed)},
  };
  for (const auto& f : kFunctions)
    if (f.name == name) return f.function;
  return nullptr;
}

std::string processor_name() {
#if defined(__x86_64__)
  unsigned words[12] = {}, most = __get_cpuid_max(0x80000000u, nullptr);
  if (most >= 0x80000004u) {
    for (unsigned i = 0; i < 3; ++i)
      __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
    std::string name(reinterpret_cast<const char*>(words), sizeof words);
    name.resize(::strnlen(name.c_str(), name.size()));
    // Family, model and stepping: a hypervisor often leaves the name vague.
    unsigned a = 0, b = 0, c = 0, d = 0;
    __get_cpuid(1, &a, &b, &c, &d);
    while (!name.empty() && name.back() == ' ') name.pop_back();
    name.erase(0, std::min(name.find_first_not_of(' '), name.size()));
    const unsigned family = ((a >> 8) & 15) == 15 ? 15 + ((a >> 20) & 255) : (a >> 8) & 15;
    return fmt::format("{} ({}/{}/{})", name, family, ((a >> 4) & 15) | ((a >> 12) & 0xf0), a & 15);
  }
#endif
  return "CPU";
}

std::int64_t last_cache_bytes() {
  const long third = ::sysconf(_SC_LEVEL3_CACHE_SIZE), second = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return std::max({third, second, 0L});
}

}  // namespace jit::cpu

namespace {

const Arch& target_of(const std::string& name) {
  if (name.empty()) return host_arch();
  std::string names;
  for (const Arch* a : host_archs()) {
    if (name == a->name) return *a;
    names += (names.empty() ? "" : ", ") + std::string(a->name);
  }
  throw must_be("target", name, "one of those that this machine's CPU runs: " + names);
}

}  // namespace

Device Device::open_cpu(const CpuOptions& options) {
  static std::atomic<unsigned long long> opened{0};
  auto context = std::make_unique<jit::cpu::Context>(options);
  context->id = ++opened;
  auto impl = std::make_shared<Impl>();
  impl->driver = &jit::Driver::cpu();
  impl->ordinal = -1;
  impl->sms = context->pool.threads();
  impl->max_threads = 1;
  for (std::int64_t& axis : impl->max_grid) axis = std::numeric_limits<std::uint32_t>::max();
  impl->l2_bytes = jit::cpu::last_cache_bytes();
  std::size_t free = 0, total = 0;
  jit::cpu::memory_info(&free, &total);
  impl->memory_bytes = static_cast<std::int64_t>(total);
  impl->name = jit::cpu::processor_name();
  impl->version = "none";
  impl->arch = &target_of(options.target);
  impl->context_id = context->id;
  impl->context = reinterpret_cast<jit::CUcontext>(context.get());
  impl->cpu = std::move(context);
  // What a Device and its copies share is this handle. Kernels do not: when the last Device goes, the threads end, also
  // where an engine keeps kernels.
  Impl* const device = impl.get();
  return Device(std::shared_ptr<Impl>(device, [impl](Impl* closed) { closed->cpu->pool.rest(); }));
}

}  // namespace tilewright
