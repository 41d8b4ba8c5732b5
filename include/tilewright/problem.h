// SPDX-License-Identifier: Apache-2.0
// Problem: the computation that a caller requests, as a value with one canonical text:
//
//   OPERATION FIELD=VALUE ...         gemm x=q8_1 w=q4_0 y=f32 m=2 n=4096 k=14336
//
// An operation is a plain struct in its own header (gemm.h, cast.h, pack.h) and an Operation (operation.h) in the list
// of templates/operations.cpp. A Problem holds a checked, immutable copy of the struct. Problems are values; any thread
// may use them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>

#include <tilewright/export.h>

namespace tilewright {

class Operation;

// A struct that says which operation it belongs to.
template <class T>
concept NamesOperation = requires {
  std::string_view(T::kOperation);
};

class TILEWRIGHT_EXPORT Problem {
 public:
  // The constructors and parse() check everything that does not depend on a device. They throw Error (invalid_argument,
  // unsupported or too_large), which names the field.
  template <NamesOperation P>
  Problem(const P& fields) : Problem(P::kOperation, typeid(P), &fields) {}
  static Problem parse(std::string_view text);
  Problem(const Problem&) = default;  // moving copies: a Problem is never empty
  Problem& operator=(const Problem&) = default;

  std::string text() const;     // canonical; parse(text()) == *this
  std::string_view op() const;  // "gemm"
  const Operation& operation() const { return *operation_; }
  // The operation's struct; null if the problem has another operation.
  template <NamesOperation P>
  const P* as() const {
    return op() == P::kOperation ? static_cast<const P*>(fields_.get()) : nullptr;
  }

  std::int64_t rows() const;                   // the run-time extent: m of a gemm; fixed if fixed_rows()
  std::int64_t cols() const;                   // the launch's second extent: n of a gemm
  bool fixed_rows() const;                     // of an operation whose launches always take all rows
  Problem with_rows(std::int64_t rows) const;  // *this if fixed_rows()
  double min_bytes() const;                    // every operand moved once
  double ops() const;                          // multiplications and additions; 0 if they do not matter

  bool same_but_rows(const Problem& other) const;
  // Octaves between the sizes of two problems that are otherwise equal; negative if they differ in anything else.
  double distance(const Problem& other) const;
  std::int64_t size_bucket() const;                   // Operation::size_bucket()
  bool same_size_bucket(const Problem& other) const;  // also equal except for sizes: they share choices
  std::string neighbours_prefix() const;              // of the text; problems with a distance share it
  std::uint64_t hash() const { return hash_; }        // equal for problems that differ only in their rows

  friend TILEWRIGHT_EXPORT bool operator==(const Problem& a, const Problem& b);

 private:
  Problem(std::string_view operation, const std::type_info& type, const void* fields);
  Problem(const Operation& operation, std::shared_ptr<const void> fields);

  const Operation* operation_;
  std::shared_ptr<const void> fields_;
  std::uint64_t hash_;
};

// Row buckets: a choice that is tuned for one number of rows serves its bucket, which is the smallest one that is not
// below this number. The last bucket has all larger numbers.
inline constexpr std::int64_t kBuckets[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
inline constexpr int kBucketCount = 13;
inline int bucket_index(std::int64_t rows) {
  int i = rows <= 1 ? 0 : 64 - __builtin_clzll(static_cast<unsigned long long>(rows - 1));
  return i < kBucketCount ? i : kBucketCount - 1;
}

// Row steps: a prepared kernel has one binary for each. Steps are small: if a tile divides the largest number of rows
// of a step evenly, it divides the others about evenly, too. The last step has all numbers above kMostStepRows.
inline constexpr std::int64_t kMostStepRows = 8192;
inline constexpr int kRowSteps = 505;
inline int row_step(std::int64_t rows) {
  if (rows <= 64) return rows <= 1 ? 0 : static_cast<int>(rows) - 1;
  if (rows <= 1024) return 64 + static_cast<int>(rows - 65) / 8;
  if (rows <= 4096) return 184 + static_cast<int>(rows - 1025) / 16;
  if (rows <= kMostStepRows) return 376 + static_cast<int>(rows - 4097) / 32;
  return kRowSteps - 1;
}
// The largest number of rows of a step. For the last step, a number above all other steps.
inline std::int64_t step_rows(int step) {
  if (step < 64) return step + 1;
  if (step < 184) return 72 + 8 * (step - 64);
  if (step < 376) return 1040 + 16 * (step - 184);
  if (step < kRowSteps - 1) return 4128 + 32 * (step - 376);
  return 2 * kMostStepRows;
}

}  // namespace tilewright
