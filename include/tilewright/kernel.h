// SPDX-License-Identifier: Apache-2.0
// From text to a launch, in independent steps:
//   Source --compile()--> Binary --Kernel--> launch()
// compile() and Binary need no GPU. Device, Stream and Kernel do. Handles are cheap to copy; a Kernel may be launched
// from any thread and is safe under stream capture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tilewright/arch.h>
#include <tilewright/candidate.h>
#include <tilewright/export.h>
#include <tilewright/options.h>
#include <tilewright/problem.h>
#include <tilewright/source.h>

namespace tilewright {

struct Resources {
  int registers = 0;        // per thread
  int shared_bytes = 0;     // static, per block
  int spill_bytes = 0;      // stores + loads, per thread
  int stack_bytes = 0;      // local memory frame, per thread
  bool serialized = false;  // ptxas gave up overlapping wgmma (warning C7510..C7519)
  friend bool operator==(const Resources&, const Resources&) = default;
};

struct Binary {
  std::string target = {};  // "sm_90a"
  std::string entry = {};
  LaunchPlan plan = {};
  Resources resources = {};
  std::vector<std::byte> image = {};           // cubin; for a CPU a relocatable ELF object
  std::string log = {};                        // warnings of the compiler, first 4096 bytes
  double seconds = 0;                          // time in the compiler; 0 if it came from a cache
  std::shared_ptr<const CpuKernel> host = {};  // instead of an image: Source::host. Not stored
};

struct CompileOptions {
  std::string nvrtc = {};       // Options::nvrtc
  bool compiler_cache = false;  // use NVRTC's own disk cache; off, so that our cache is the only one
  NvrtcPlaces places = {};      // Options::nvrtc_places; searched where `nvrtc` is empty
  std::string llvm = {};        // Options::llvm

  static CompileOptions of(const Options& options) {
    return {options.nvrtc, false, options.nvrtc_places, options.llvm};
  }
};

// Compiles for one target: CUDA C++ by NVRTC, or LLVM IR by libLLVM if the target is a CPU. Thread-safe. Throws
// CompileError; Error (library_missing) if the compiler cannot be used; Error (compile_failed) if the result does not
// have the entry symbol.
TILEWRIGHT_EXPORT Binary compile(const Source& source, const Arch& arch, const CompileOptions& options = {});

// The version of the libnvrtc that compile() would use, such as "13.0 build 88". It is a part of every binary key.
TILEWRIGHT_EXPORT std::string compiler_version(const CompileOptions& options = {});

struct CompilerInfo {
  std::string path = {};          // of the library that was loaded
  std::string version = {};       // compiler_version()
  std::vector<int> targets = {};  // compute capabilities it compiles for, times ten; empty if it cannot list them
};
// Finds and loads libnvrtc. Thread-safe. Throws Error (library_missing) naming every place searched.
TILEWRIGHT_EXPORT CompilerInfo compiler_info(const CompileOptions& options = {});
// The same for a target's compiler. For a CPU it is libLLVM, with a version such as "LLVM 19.1.7".
TILEWRIGHT_EXPORT CompilerInfo compiler_info(const CompileOptions& options, const Arch& arch);

// A CUstream of the driver API or a cudaStream_t of the runtime: the same handle. null: the legacy default stream.
using Stream = void*;

// How Device::open_cpu() computes.
struct CpuOptions {
  int threads = 0;  // including the calling thread; 0: one for each CPU that this process may use
  // Runs body(i) for each i from 0 to count - 1 on the host program's threads, and returns when all are done. Empty:
  // the Device starts its own threads, which spin for about 20 us after a launch and then sleep.
  std::function<void(std::int64_t count, const std::function<void(std::int64_t)>& body)> parallel_for = {};
  // A row of cpu_archs() that this machine's CPU can run; empty: the best. With a target without AMX, the process does
  // not request AMX's registers from the system.
  std::string target = {};
};

class TILEWRIGHT_EXPORT Device {
 public:
  // Retains the device's primary context, which the CUDA runtime and PyTorch share. Throws Error (library_missing,
  // invalid_argument with the ordinals that exist, driver_failed).
  // `driver`: path of libcuda (Options::driver); empty: libcuda.so.1.
  static Device open(int ordinal = 0);
  static Device open(int ordinal, const std::string& driver);
  // This machine's CPU. Launches take host pointers; pointers that are aligned to 64 bytes are fastest. A launch is
  // complete when it returns; its stream is null, or an OwnedStream of this device. Only one launch at a time uses the
  // device's threads; a concurrent launch computes on its caller's thread. Results do not depend on the number of
  // threads. A child of fork() starts its own threads. Throws Error (invalid_argument): threads, target.
  static Device open_cpu(const CpuOptions& options = {});
  static int count();  // 0 when there is no driver or no device; never throws
  static int count(const std::string& driver);

  const std::string& name() const;  // "NVIDIA H200"; for a CPU, its own name
  int ordinal() const;              // -1: a CPU
  int sms() const;                  // of a CPU, threads
  std::int64_t l2_bytes() const;
  std::int64_t memory_bytes() const;
  const std::string& driver_version() const;  // "580.82.07 (CUDA 13.0)"; the first part only where the system tells it
  const Arch& arch() const;  // nearest row of the table; if there is none, open() throws Error (unsupported)
  void synchronize() const;  // throws Error (driver_failed)

  Device(const Device&) = default;  // copies share the context; moving copies
  Device& operator=(const Device&) = default;

  struct Impl;
  const std::shared_ptr<Impl>& impl() const { return impl_; }
  explicit Device(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<Impl> impl_;
};

// The layout of a kernel's argument struct and the rules for its values, as data. With it the launcher fills and checks
// the struct without knowledge of the operation.
struct PointerRule {
  const char* name = "";     // of its buffer (Task::buffers): "x.data", or "x"; text after a space is for readers
  std::uint32_t offset = 0;  // of the pointer in the argument struct
  std::uint32_t align = 1;   // bytes
  bool required = true;      // null is an error
};
struct StrideRule {
  const char* name = "";      // "ldx"
  std::uint32_t offset = 0;   // of the int64 in the argument struct; the value 0 means `least`
  std::int64_t least = 0;     // elements
  std::int64_t multiple = 1;  // elements
  std::uint32_t pointer = 0;  // offset of the pointer to the matrix
};
// A matrix that is read and a matrix that is written. Their rows must not overlap, or, if `in_place`, they may be the
// same matrix. They may lie side by side in a wider matrix, with the same stride.
struct MatrixRule {
  // Offsets in the argument struct: of the pointer, and of the int64 stride, which has a StrideRule.
  std::uint32_t pointer = 0, stride = 0;
  std::int64_t cols = 0;  // of each row
  int element_bytes = 1;
};
struct OverlapRule {
  const char* name = "";     // of the matrix that is read: "c"
  const char* written = "";  // "y"
  MatrixRule in = {}, out = {};
  bool in_place = false;
};
// A factor that each launch passes.
struct FactorRule {
  const char* name = "";           // "alpha"
  std::uint32_t offset = 0;        // of the float in the argument struct
  const char* only_one = nullptr;  // why it must be 1; null: any finite number
};
// An integer that each launch passes; 0 if it passes none.
struct IntegerRule {
  const char* name = "";     // "seed"
  std::uint32_t offset = 0;  // of the int64 or uint64 in the argument struct
};
// A value of a launch by buffers: an integer for a stride or an IntegerRule, a number for a factor.
union LaunchValue {
  std::int64_t integer = 0;
  double number;
};
// A pointer to the first row of a matrix. If a launch is divided (LaunchPlan::most_rows), it moves with the rows.
struct RowsRule {
  static constexpr std::uint32_t kDense = ~0u;
  std::uint32_t pointer = 0;         // offset in the argument struct
  std::uint32_t stride_at = kDense;  // offset of the int64 stride, which has a StrideRule; kDense: 1
  std::int64_t bytes = 0;            // from a row to the next, over the stride: of so many
  std::int64_t elements = 1;         // elements of it
};
struct Contract {
  std::string op = {};                     // "gemm"
  std::uint32_t args_bytes = 0;            // size of the argument struct
  std::vector<PointerRule> pointers = {};  // in the order of Task::buffers: one for each
  std::vector<StrideRule> strides = {};
  std::vector<FactorRule> factors = {};
  std::vector<IntegerRule> integers = {};
  std::optional<OverlapRule> overlap = {};
  std::vector<RowsRule> row_pointers = {};  // empty: launches are not divided
  std::vector<std::byte> constants = {};    // second kernel parameter, fixed at prepare(); empty: there is none
                                            // After them come the tensor maps of the binary's LaunchPlan.
  static constexpr std::uint32_t kFixedRows = ~0u;
  std::uint32_t rows_at = kFixedRows;  // offset of the int64 in the argument struct that holds the launch's rows
  std::int64_t rows_per = 1;           // what it is divided by, rounded up
  std::string rows_name = {};          // "m"
  std::int64_t rows = 0;               // if they are fixed
  std::int64_t cols = 0;               // the launch's second extent

  // The values of a launch: those of strides, factors and integers, in this order.
  std::size_t value_count() const { return strides.size() + factors.size() + integers.size(); }
  // Writes the argument struct of a launch, args_bytes long. buffers: one pointer for each of `pointers`, or null.
  // launch_rows: the value of the struct's member; `rows_per` of them are one row of a Task. values: value_count()
  // values, or none, which means 0 for strides and integers and 1 for factors.
  void write(std::span<void* const> buffers, std::int64_t launch_rows, std::span<const LaunchValue> values,
             std::byte* to) const {
    std::memset(to, 0, args_bytes);
    for (std::size_t i = 0; i < pointers.size(); ++i) std::memcpy(to + pointers[i].offset, &buffers[i], sizeof(void*));
    if (rows_at != kFixedRows) std::memcpy(to + rows_at, &launch_rows, sizeof launch_rows);
    std::size_t next = 0;
    const auto integer = [&](std::uint32_t offset) {
      const std::int64_t value = values.empty() ? 0 : values[next++].integer;
      std::memcpy(to + offset, &value, sizeof value);
    };
    for (const StrideRule& rule : strides) integer(rule.offset);
    for (const FactorRule& rule : factors) {
      const float value = values.empty() ? 1.0f : static_cast<float>(values[next++].number);
      std::memcpy(to + rule.offset, &value, sizeof value);
    }
    for (const IntegerRule& rule : integers) integer(rule.offset);
  }
};

class TILEWRIGHT_EXPORT Kernel {
 public:
  // A caller's own binary. Throws Error (driver_failed) if the driver refuses it, Error (invalid_argument) if its
  // launch plan exceeds the device's limits (threads, shared memory) or names a field that is not in the arguments,
  // Error (library_missing) if it has tensor maps and the driver is too old for them.
  Kernel(const Device& device, const Binary& binary);

  // Several binaries, each for some numbers of rows: binaries[by_bucket[i]] serves bucket i (see kBuckets). -1: the
  // bucket has no binary and uses that of the nearest larger bucket, else of the nearest smaller one. Throws the same
  // errors.
  Kernel(const Device& device, std::span<const Binary> binaries, std::span<const int> by_bucket, Contract contract);

  // Copies share the loaded image. So do all kernels of one image in one context, including its __device__ variables.
  // The last one unloads it, so a Kernel must outlive the graphs that captured its launches. A move copies: a Kernel is
  // never empty.
  Kernel(const Kernel&) = default;
  Kernel& operator=(const Kernel&) = default;

  // Launch. The binary that serves the arguments' rows (m of a gemm) runs on `stream`; nothing is compiled, allocated
  // or synchronized, so a call is safe under stream capture and from any thread. Zero rows launch nothing. Throws
  // Error: invalid_argument naming the argument (null, misaligned, stride below the row, wrong operation; with
  // `check_pointers` also host pointers and pointers of another device), too_large (grid), driver_failed (also when the
  // device was reset since, or a tensor map cannot be made: a stride that is no multiple of 16 bytes), forked.
  // Afterwards the thread's current context is the same as before.
  template <NamesOperation Args>  // GemmArgs, CastArgs, PackArgs
  void launch(Stream stream, const Args& args) const {
    launch_operation(stream, Args::kOperation, &args, sizeof args);
  }
  // The same for a caller that knows only the contract() of the operation. buffers: a pointer for each of
  // Contract::pointers, in order, or null if the launch has no such buffer. rows: the rows of the launch; if the
  // contract fixes them, the same number. values: Contract::value_count() values, or none. Also throws Error
  // (invalid_argument) if a count is wrong.
  void launch_buffers(Stream stream, std::span<void* const> buffers, std::int64_t rows,
                      std::span<const LaunchValue> values = {}) const;
  // Launches with a caller's own argument struct, the first parameter of the entry function.
  void launch(Stream stream, std::span<const std::byte> params, std::int64_t rows, std::int64_t cols) const;

  void check_pointers(bool on);                     // off by default: it asks the driver about every pointer
  const Contract& contract() const;                 // of launches; op is empty for a caller's own kernel
  const LaunchPlan& plan(std::int64_t rows) const;  // of the binary that serves `rows`
  const Resources& resources(std::int64_t rows) const;
  // The candidate that Engine::prepare() selected for `rows`; without a family if the binaries are the caller's own.
  const Candidate& candidate(std::int64_t rows) const;

  struct Impl;
  explicit Kernel(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  void launch_operation(Stream stream, std::string_view operation, const void* args, std::size_t bytes) const;

  std::shared_ptr<Impl> impl_;
};

}  // namespace tilewright
