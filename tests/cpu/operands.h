// SPDX-License-Identifier: Apache-2.0
// A problem's operands in guarded memory, for tests that run a kernel by itself.
#pragma once

#include <sys/mman.h>
#include <tilewright/operation.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpu_test.h"
#include "templates/common/families.h"

namespace tilewright::test {

enum class Edge { end, begin };

// Memory between pages that the process may not touch, at the one or the other: what a kernel reads or writes beyond an
// operand ends the test.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t align, Edge edge = Edge::end) {
    const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    size_ = (bytes + page - 1) / page * page + 2 * page;
    base_ = static_cast<char*>(::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(base_ != MAP_FAILED);
    REQUIRE(::mprotect(base_, page, PROT_NONE) == 0);
    REQUIRE(::mprotect(base_ + size_ - page, page, PROT_NONE) == 0);
    data_ = edge == Edge::begin ? base_ + page : base_ + size_ - page - (bytes + align - 1) / align * align;
  }
  Guarded(Guarded&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), data_(other.data_), size_(other.size_) {}
  ~Guarded() {
    if (base_) ::munmap(base_, size_);
  }
  void* data() const { return data_; }

 private:
  char *base_ = nullptr, *data_ = nullptr;
  std::size_t size_ = 0;
};

// A problem's operands, in guarded memory.
struct Operands {
  Problem problem;
  Task task;
  std::vector<Guarded> memory;
  std::vector<std::span<std::byte>> spans;
  std::vector<void*> pointers;

  explicit Operands(const std::string& text, Edge edge = Edge::end) : problem(Problem::parse(text)) {
    problem.operation().describe(problem, task);
    const Contract contract = contract_for(problem);
    for (const Buffer& b : task.buffers) {
      std::size_t align = 1;  // as little as a launch takes
      for (const PointerRule& rule : contract.pointers)
        if (b.name == rule.name || b.name == std::string(rule.name) + ".data") align = rule.align;
      memory.emplace_back(b.bytes, align, edge);
      spans.emplace_back(static_cast<std::byte*>(memory.back().data()), b.bytes);
      pointers.push_back(memory.back().data());
      if (b.output) std::memset(spans.back().data(), 0xff, b.bytes);
      if (!b.output && b.fill) b.fill(spans.back(), 1);
    }
  }
  std::vector<std::byte> run(const Device& device, const Binary& binary) {
    for (std::size_t i = 0; i < spans.size(); ++i)
      if (task.buffers[i].output) std::memset(spans[i].data(), 0xff, spans[i].size());
    const int first[] = {0};
    const Kernel kernel(device, std::span(&binary, 1), first, contract_for(problem));
    kernel.launch(nullptr, task.arguments(pointers, problem.rows()), problem.rows(), problem.cols());
    std::vector<std::byte> y;
    for (std::size_t i = 0; i < spans.size(); ++i)
      if (task.buffers[i].output) y.insert(y.end(), spans[i].begin(), spans[i].end());
    return y;
  }
  std::string wrong() const { return problem.operation().check_on_host(problem, task, spans).wrong; }
};

// All kernels of a problem give the bits of the first one, which is right.
class SameBits {
 public:
  void require(Operands& o, const Device& device, const Binary& binary) {
    const std::vector<std::byte> y = o.run(device, binary);
    if (bits_.empty()) {
      REQUIRE(o.wrong() == "");
      bits_ = y;
    }
    REQUIRE(y == bits_);
  }
  const std::vector<std::byte>& bits() const { return bits_; }

 private:
  std::vector<std::byte> bits_;
};

inline Binary built_in(const Source& source, const Arch& target) {
  REQUIRE(source.host);
  Binary b;
  b.target = target.name;
  b.entry = source.entry;
  b.plan = source.plan;
  b.host = source.host;
  return b;
}

}  // namespace tilewright::test
