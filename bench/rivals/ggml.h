// SPDX-License-Identifier: Apache-2.0
// ggml's CPU backend as a rival of the kernels for CPUs: a program over it (bench/rivals/ggml), which is built from the
// source folder that the user names.
#pragma once

#include <sys/types.h>
#include <tilewright/arch.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace tilewright::bench {

// cmake's arguments for a ggml that has a target's features: for this machine's best, all that the compiler finds here,
// for a lower one, those of its row alone. So a lower target meets the ggml of a CPU that has no more.
std::string ggml_options(const Arch& target);

// A process that computes one product again and again. Move-only.
class GgmlProduct {
 public:
  GgmlProduct(const std::string& program, const std::vector<std::string>& arguments);
  GgmlProduct(GgmlProduct&& other) noexcept;
  GgmlProduct& operator=(GgmlProduct&&) = delete;
  ~GgmlProduct();
  explicit operator bool() const { return !buffer_.empty(); }  // false: ggml has no kernel for it there
  const std::string& buffer() const { return buffer_; }        // "CPU", "CPU_REPACK", "AMX"
  std::vector<double> run(double seconds);                     // microseconds of each product; empty: it crashed

 private:
  std::string line();
  pid_t child_ = -1;
  std::FILE* talk_ = nullptr;
  std::string buffer_;
};

class Ggml {
 public:
  // Builds it in a temporary folder, with the compiler that CC and CXX name, and with ggml_options(target). Throws
  // Error (invalid_argument) with the end of what cmake said.
  Ggml(const std::string& source, const Arch& target);
  ~Ggml();
  Ggml(const Ggml&) = delete;
  Ggml& operator=(const Ggml&) = delete;

  const std::string& version() const { return version_; }  // with the compiler
  // m rows of x by w[n, k] in each type of buffer that has kernels for it, `copies` of w taken in turn.
  std::vector<GgmlProduct> products(int threads, const std::string& format, std::int64_t m, std::int64_t n,
                                    std::int64_t k, std::size_t copies) const;

 private:
  void build(const std::string& source, const std::string& options) const;
  std::string program() const { return (folder_ / "build" / "rival").string(); }

  std::filesystem::path folder_;
  std::string version_;
};

}  // namespace tilewright::bench
