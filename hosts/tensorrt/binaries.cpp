// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/binaries.h"

#include <tilewright/error.h>
#include <tilewright/store.h>
#include <tilewright/transpose.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "hosts/tensorrt/runtime.h"

namespace tilewright::tensorrt {
namespace {

// A folder that nobody else may open, and that goes with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tilewright-XXXXXX").string();
    if (!mkdtemp(name.data()))
      throw Error(ErrorCode::io, "folder", name, "cannot be created; set TMPDIR to a folder that can be written");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

Problem transpose(const char* x, std::int64_t rows, std::int64_t cols) {
  return Problem(Transpose{Format::parse(x), rows, cols});
}

Bytes compile_all(const std::vector<Problem>& problems, const Arch& arch) {
  const TemporaryFolder folder;
  Options options = engine().options();
  options.cache = folder.file("cache.db");
  options.shipped.clear();  // whose kernels would not be exported
  Engine own(options);
  const Arch* const archs[] = {&arch};
  const PrewarmReport report = own.prewarm(problems, archs, {.top = 1});
  if (!report.failures.empty())
    throw Error(ErrorCode::compile_failed, "binaries", "", "cannot be compiled: " + report.failures.front());
  const std::string file = folder.file("export.db");
  own.store().export_to(file);
  Bytes bytes(std::filesystem::file_size(file));
  std::ifstream stream(file, std::ios::binary);
  if (!stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
    throw Error(ErrorCode::io, "file", file, "cannot be read");
  return bytes;
}

}  // namespace

Problem transpose_data(const Gemm& gemm) { return transpose("int8", gemm.k / 2, gemm.n); }
Problem transpose_scales(const Gemm& gemm) { return transpose("int8", gemm.k / 16, gemm.n); }

std::vector<Problem> problems_of(const Recipe& recipe) {
  std::vector<Problem> all = {recipe.problems.main};
  if (recipe.problems.cast) all.push_back(*recipe.problems.cast);
  if (recipe.problems.fused) all.push_back(*recipe.problems.fused);
  if (recipe.weights == Weights::transposed) {
    all.push_back(transpose_data(*recipe.gemm()));
    all.push_back(transpose_scales(*recipe.gemm()));
    if (recipe.problems.repack) all.push_back(*recipe.problems.repack);
  }
  return all;
}

Bytes compiled(const Recipe& recipe) {
  // Layers of a model often have the same problem.
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, Bytes>();
  const std::vector<Problem> problems = problems_of(recipe);
  std::string id = recipe.arch->name;
  for (const Problem& problem : problems) id += "\n" + problem.text();
  const std::lock_guard lock(mutex);
  const auto [at, added] = known->try_emplace(id);
  if (!added) return at->second;
  try {
    at->second = compile_all(problems, *recipe.arch);
  } catch (...) {
    known->erase(at);
    throw;
  }
  return at->second;
}

void add_to_cache(const Bytes& binaries) {
  static std::mutex mutex;
  static auto* const added = new std::set<std::string>();  // every execution context asks
  const std::lock_guard lock(mutex);
  const std::string hash = sha256_hex({reinterpret_cast<const char*>(binaries.data()), binaries.size()});
  if (added->contains(hash)) return;
  const TemporaryFolder folder;
  const std::string file = folder.file("engine.db");
  {
    std::ofstream stream(file, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(binaries.data()), static_cast<std::streamsize>(binaries.size()));
    if (!stream.flush()) throw Error(ErrorCode::io, "file", file, "cannot be written; is the disk full?");
  }
  engine().store().merge_from(file);
  added->insert(hash);
}

}  // namespace tilewright::tensorrt
