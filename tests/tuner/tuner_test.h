// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of tuner/: a scratch folder, options for the driver double and the real compiler, a toy task
// whose kernels run on the host, and a launch handler that computes real gemms and casts there.
#pragma once

#include <tilewright/engine.h>
#include <tilewright/error.h>
#include <tilewright/tilewright.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/fake_cuda.h"
#include "support/paths.h"

namespace tilewright::test {

class TempDir {
 public:
  TempDir();
  ~TempDir();
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Messages of an Engine.
struct Messages {
  std::mutex mutex;
  std::vector<std::string> warnings;
  bool any(const std::string& part);
};

// A gemm that compiles quickly, for the target that has most families.
const Problem& small();
const Arch& target();

// cache: a path, or empty for memory.
Options options(const std::string& cache, std::shared_ptr<Messages> messages = nullptr);
Error error_of(ErrorCode code, const std::function<void()>& action);
inline bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What a toy kernel does besides doubling its input.
enum class Deed {
  right,
  one_wrong,
  nan,
  writes_behind,
  writes_before,
  differs_each_run,
  last_tile,
  changes_input,
  faults
};

// The driver double, fresh, with a launch handler. One at a time.
class FakeGpu {
 public:
  FakeGpu();
  ~FakeGpu();
  Device device(int ordinal = 0) const { return Device::open(ordinal, paths::fake_cuda()); }

  // ---- toy kernels: by the number in their entry's name
  std::map<int, Deed> deeds;
  std::map<int, double> durations;                             // microseconds; default 10
  std::function<double(int variant, int launch)> duration_of;  // overrides the above

  // ---- real problems: launches are computed for this problem. The oracle's image tells it from the candidates.
  void serve(const Problem& problem, const Arch& arch);
  std::set<std::vector<std::byte>> bad_images;  // get one element of y wrong
  bool all_bad = false;
  std::set<std::vector<std::byte>> good_images;  // but these
  std::function<void(const FakeLaunch&)> on_launch;
  std::function<double(const FakeLaunch&, std::int64_t rows)> gemm_duration;  // microseconds; default 10

  long launches = 0;

 private:
  static void handle(const FakeLaunch* launch, void* self);
  static double duration(const FakeLaunch* launch, void* self);
  void run_toy(const FakeLaunch& launch, int variant);
  void run_gemm(const FakeLaunch& launch, const Gemm& gemm, bool oracle);
  void run_cast(const FakeLaunch& launch, const Cast& cast);
  void run_pack(const FakeLaunch& launch, const Pack& pack);

  std::unique_ptr<Problem> problem_;
  std::vector<std::byte> oracle_image_;
  std::map<int, int> runs_;
};

// y[i] = 2 x[i], `variants` ways, each its own kernel. Variant i is candidate "toy v=i".
Task toy_task(int variants, std::int64_t rows = 8);
Candidate toy(int variant);

// Small and quick: few copies, no patience.
TunePolicy quick_policy();

// One cache for the cases that only read what others compiled: NVRTC is most of their time.
const std::string& warm_cache();
// Options with a private copy of it.
Options warmed(const TempDir& dir, std::shared_ptr<Messages> messages = nullptr);

}  // namespace tilewright::test
