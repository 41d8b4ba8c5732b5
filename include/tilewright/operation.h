// SPDX-License-Identifier: Apache-2.0
// Operation: everything that the library, the tuner and the tools know about one computation. An operation is a folder
// of templates/ with its kernels, a public struct that names it, and a line in templates/operations.cpp. All other code
// uses this interface. Operations are stateless; any thread may use them. `fields` points to the operation's struct,
// already checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <tilewright/export.h>
#include <tilewright/family.h>
#include <tilewright/format.h>
#include <tilewright/kernel.h>
#include <tilewright/problem.h>
#include <tilewright/task.h>

namespace tilewright {

// A field of the operation's struct, as help and error messages show it.
struct FieldInfo {
  std::string name;       // "w"
  std::string value;      // what may follow '=': "FORMAT", "INTEGER", "NUMBER", "relu|gelu|gelu_tanh|silu"
  std::string help;       // one line
  bool required = false;  // else it has a default, and is printed only if it differs
};

struct Extents {
  std::int64_t rows = 0, cols = 0;  // of a launch
  bool fixed_rows = false;          // the rows are fixed by the problem, not by the launch
};

// The result of a check of outputs on the host.
struct HostCheck {
  std::int64_t checked = 0, outputs = 0;  // how many outputs were checked, of how many
  double largest_error = 0;               // absolute
  std::optional<double> of_bound;         // largest error relative to its bound; unset: every byte must match
  std::int64_t infinite = 0;              // checked outputs that are not finite, as the exact result in y's type
  std::string wrong;                      // the first output beyond its bound; empty if none
};

// How the weights of a problem are brought into the order of its kernels.
struct Repack {
  Problem problem;  // whose kernel does it
  std::function<std::vector<std::byte>(Operand from, MutableOperand to)> arguments;
};

// A problem that a caller should use instead of another, because a target has faster kernels for it.
struct Recommendation {
  std::string field;  // the addition to the text: "pack=tiles"
  std::string how;    // what the caller must do for it, as a clause
  Problem problem;    // with this field and those recommended before it
};

class TILEWRIGHT_EXPORT Operation {
 public:
  virtual ~Operation() = default;
  virtual std::string_view name() const = 0;   // "gemm"
  virtual std::string_view title() const = 0;  // one line for humans
  virtual const std::type_info& type() const = 0;

  // ---- the struct and its text
  virtual std::vector<FieldInfo> fields() const = 0;
  virtual std::shared_ptr<const void> copy(const void* fields) const = 0;  // checked; throws Error naming the field
  virtual std::shared_ptr<const void> parse(std::vector<std::pair<std::string, std::string>> values) const = 0;
  virtual std::string text(const void* fields) const = 0;
  // The beginning of the text that is common to problems which differ only in their sizes.
  virtual std::string neighbours_prefix(const void* fields) const = 0;
  virtual std::uint64_t hash(const void* fields) const = 0;  // without rows
  virtual bool equal(const void* a, const void* b, bool rows_too) const = 0;
  virtual Extents extents(const void* fields) const = 0;
  virtual std::shared_ptr<const void> with_rows(const void* fields, std::int64_t rows) const = 0;
  virtual double min_bytes(const void* fields) const = 0;
  virtual double ops(const void* fields) const = 0;
  // Octaves between the sizes of two problems that are otherwise equal; negative if they are not, or cannot share
  // choices.
  virtual double distance(const void* a, const void* b) const = 0;
  // Problems that differ only in their sizes share choices if this number is equal, as launches share choices by
  // kBuckets of rows. 0: each problem has its own choice.
  virtual std::int64_t size_bucket(const void* fields) const = 0;

  // ---- kernels
  virtual std::span<const Family* const> families() const = 0;  // for GPUs; most specialized first, the reference last
  virtual std::span<const Family* const> cpu_families() const = 0;  // the same for CPUs; empty: there are none
  virtual Contract contract(const Problem& problem) const = 0;      // of a launch
  // The candidate whose results are the reference for the others; empty if describe()'s compare() needs none.
  virtual std::optional<Candidate> oracle(const Problem& problem, const Arch& arch) const = 0;
  // Fills in the task's buffers, matrices, arguments, verify_rows, oracle_scale, compare and worst_error.
  virtual void describe(const Problem& problem, Task& task) const = 0;
  // The same problem with weights in the order of this target's best kernels. Empty if it has this order already, or if
  // there are no such kernels for some number of rows.
  virtual std::optional<Problem> packed(const Problem& problem, const Arch& arch) const = 0;
  virtual std::optional<Repack> repack(const Problem& problem) const = 0;  // of a packed problem
  // Fields that give faster kernels on this target and that a caller may not know; each adds to those before it. Empty
  // if there are none.
  virtual std::vector<Recommendation> recommended(const Problem& problem, const Arch& arch) const = 0;

  // ---- the host. `buffers` are those of `task` (describe()), one span each.
  // Computes the outputs by simple code, in single precision or exactly. May leave out outputs that check_on_host()
  // does not check.
  virtual void run_on_host(const Problem& problem, const Task& task,
                           std::span<const std::span<std::byte>> buffers) const = 0;
  // Checks the outputs against its own sums in double precision; independent of every kernel.
  virtual HostCheck check_on_host(const Problem& problem, const Task& task,
                                  std::span<const std::span<std::byte>> buffers) const = 0;
};

TILEWRIGHT_EXPORT std::span<const Operation* const> operations();
TILEWRIGHT_EXPORT const Operation& operation(std::string_view name);  // throws Error (invalid_argument), names them all

}  // namespace tilewright
