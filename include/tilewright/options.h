// SPDX-License-Identifier: Apache-2.0
// Options of an Engine. Options::from_env() is the only place in the library that reads the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/export.h>

namespace tilewright {

enum class LogLevel { error, warning, info, debug };

// Where libnvrtc is looked for besides the usual places. Each is a directory that holds it, a CUDA toolkit, a virtual
// environment, a Python prefix, or a directory of Python packages (NVIDIA's wheel).
struct NvrtcPlaces {
  std::vector<std::string> before = {};  // searched before the dynamic loader and /usr/local/cuda*: what is activated
  std::vector<std::string> after = {};   // searched after them
};

struct TILEWRIGHT_EXPORT Options {
  // Cache file. Empty: $XDG_CACHE_HOME/tilewright/v1/cache.db, else $HOME/.cache/tilewright/v1/cache.db, as found by
  // from_env(); with neither, a cache in memory. ":memory:" asks for that.
  std::string cache = {};
  std::vector<std::string> shipped = {};  // read-only stores below the user's, first wins
  std::int64_t cache_cap = 512ll << 20;   // bytes; oldest use first to go
  std::int64_t prepared_cap = 1024;       // prepared problems kept in memory, the most recently used; at least 1
  bool cache_read_only = false;           // look-ups only: the cache file is neither created nor changed
  bool allow_shared = false;              // accept caches that the group may write, or that another user owns
  std::string nvrtc = {};                 // libnvrtc, or a directory that holds it; empty: search
  bool same_nvrtc = false;                // take no stored kernel that another build of NVRTC compiled
  NvrtcPlaces nvrtc_places = {};          // where to search besides the usual places
  std::string llvm = {};                  // libLLVM, or a directory that holds it; empty: search
  std::string driver = {};                // path of libcuda; empty: libcuda.so.1
  std::string templates = {};             // read kernel templates from this folder, `templates` of a checkout
  std::string record = {};                // append every problem asked for to this workload file
  bool tune = false;            // prepare() measures what it does not know, instead of taking the ranked first
  bool compile = true;          // false: prepare() throws would_tune instead of compiling
  int jobs = 0;                 // compile threads; 0: one per core, at most 16
  bool check_pointers = false;  // every launch asks the driver about its pointers
  // Called from any thread, never concurrently with itself for one Engine. Silent if empty.
  std::function<void(LogLevel, std::string_view)> log = {};
  std::optional<LogLevel> log_level = {};  // the least urgent level that reaches `log`; unset: all do
  // Every launch of a prepared kernel is logged, whatever log_level is: problem, kernel, time, device. On a GPU each
  // launch is then waited for, except under capture, where there is no time to report.
  bool log_launches = false;
  // An NVTX range around every launch of a prepared kernel, named by problem and kernel, for Nsight and other
  // profilers. "1" opens the loader's libnvToolsExt or libnvtx3interop; a path opens that library; empty: no ranges.
  std::string nvtx = {};

  // TILEWRIGHT_CACHE, TILEWRIGHT_SHIPPED (colon-separated), TILEWRIGHT_CACHE_CAP (bytes),
  // TILEWRIGHT_ALLOW_SHARED (0|1), TILEWRIGHT_NVRTC, TILEWRIGHT_SAME_NVRTC (0|1), TILEWRIGHT_LLVM,
  // TILEWRIGHT_DRIVER, TILEWRIGHT_TEMPLATES, TILEWRIGHT_RECORD, TILEWRIGHT_TUNE (0|1), TILEWRIGHT_JOBS,
  // TILEWRIGHT_CHECK_POINTERS (0|1), TILEWRIGHT_LOG (error|warn|info|debug, launch), TILEWRIGHT_NVTX (1 or a
  // path), XDG_CACHE_HOME, HOME. A value that cannot be used is ignored and named in `warnings`, as is a misspelt name.
  // With TILEWRIGHT_LOG set, `log` is log_to_stderr, which a program may replace. nvrtc_places: VIRTUAL_ENV,
  // CONDA_PREFIX, CUDA_PATH and CUDA_HOME come before the system's places; the prefix of the python3 on PATH and
  // $HOME/.local after them.
  static Options from_env();
  std::vector<std::string> warnings = {};  // what from_env() ignored; Engine logs them once
};

// "tilewright 2026-01-31T12:00:00.123Z warning: TEXT", a line to stderr.
TILEWRIGHT_EXPORT void log_to_stderr(LogLevel level, std::string_view text);

}  // namespace tilewright
