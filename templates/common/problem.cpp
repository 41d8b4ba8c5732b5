// SPDX-License-Identifier: Apache-2.0
#include <tilewright/error.h>
#include <tilewright/operation.h>
#include <tilewright/problem.h>

#include "support/must_be.h"
#include "templates/common/words.h"

namespace tilewright {
namespace {

std::shared_ptr<const void> copy_of(const Operation& operation, const std::type_info& type, const void* fields) {
  if (type != operation.type())
    throw must_be("problem", type.name(), "the struct of operation " + std::string(operation.name()));
  return operation.copy(fields);
}

}  // namespace

Problem::Problem(std::string_view name, const std::type_info& type, const void* fields)
    : Problem(tilewright::operation(name), copy_of(tilewright::operation(name), type, fields)) {}

Problem::Problem(const Operation& operation, std::shared_ptr<const void> fields)
    : operation_(&operation), fields_(std::move(fields)), hash_(operation.hash(fields_.get())) {}

Problem Problem::parse(std::string_view text) {
  auto [name, words] = split_problem(text);
  const Operation& found = tilewright::operation(name);
  return Problem(found, found.parse(std::move(words)));
}

std::string Problem::text() const { return operation_->text(fields_.get()); }
std::string_view Problem::op() const { return operation_->name(); }
std::int64_t Problem::rows() const { return operation_->extents(fields_.get()).rows; }
std::int64_t Problem::cols() const { return operation_->extents(fields_.get()).cols; }
bool Problem::fixed_rows() const { return operation_->extents(fields_.get()).fixed_rows; }
double Problem::min_bytes() const { return operation_->min_bytes(fields_.get()); }
double Problem::ops() const { return operation_->ops(fields_.get()); }

Problem Problem::with_rows(std::int64_t rows) const {
  const Extents e = operation_->extents(fields_.get());
  if (e.fixed_rows || e.rows == rows) return *this;
  return Problem(*operation_, operation_->with_rows(fields_.get(), rows));
}

double Problem::distance(const Problem& other) const {
  return operation_ == other.operation_ ? operation_->distance(fields_.get(), other.fields_.get()) : -1;
}

std::int64_t Problem::size_bucket() const { return operation_->size_bucket(fields_.get()); }

bool Problem::same_size_bucket(const Problem& other) const {
  return size_bucket() > 0 && distance(other) >= 0 && size_bucket() == other.size_bucket();
}

std::string Problem::neighbours_prefix() const { return operation_->neighbours_prefix(fields_.get()); }

bool Problem::same_but_rows(const Problem& other) const {
  return operation_ == other.operation_ &&
         (fields_ == other.fields_ || operation_->equal(fields_.get(), other.fields_.get(), false));
}

bool operator==(const Problem& a, const Problem& b) {
  return a.operation_ == b.operation_ &&
         (a.fields_ == b.fields_ || a.operation_->equal(a.fields_.get(), b.fields_.get(), true));
}

}  // namespace tilewright
