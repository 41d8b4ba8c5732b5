// SPDX-License-Identifier: Apache-2.0
// OperationOf<P, Fields>: an Operation over the struct P, whose members Fields visits (templates/common/words.h). What
// is left to write takes a P and does not compile if it is forgotten.
#pragma once

#include <cmath>

#include "templates/common/describe.h"
#include "templates/common/words.h"

namespace tilewright {

template <NamesOperation P, class Fields>
class OperationOf : public Operation {
 public:
  std::string_view name() const final { return P::kOperation; }
  const std::type_info& type() const final { return typeid(P); }

  std::vector<FieldInfo> fields() const final {
    DescribeFields describe;
    P fields = blank();
    Fields::visit(fields, describe);
    return std::move(describe.list);
  }
  std::shared_ptr<const void> copy(const void* fields) const final { return checked(of(fields)); }
  std::shared_ptr<const void> parse(std::vector<std::pair<std::string, std::string>> words) const final {
    check_names(name(), fields(), words);
    P fields = blank();
    Fields::visit(fields, ParseFields(words));
    return checked(fields);
  }
  std::string text(const void* fields) const final { return print(of(fields), false); }
  std::string neighbours_prefix(const void* fields) const final { return print(of(fields), true); }
  std::uint64_t hash(const void* fields) const final {
    HashFields visitor;
    Fields::visit(of(fields), visitor);
    return visitor.hash;
  }
  bool equal(const void* a, const void* b, bool rows_too) const final {
    if (rows_too) return of(a) == of(b);
    P same = of(a);
    set_rows(same, extents_of(of(b)).rows);
    return same == of(b);
  }
  Extents extents(const void* fields) const final { return extents_of(of(fields)); }
  std::shared_ptr<const void> with_rows(const void* fields, std::int64_t rows) const final {
    P copy = of(fields);
    set_rows(copy, rows);
    return checked(copy);
  }
  double min_bytes(const void* fields) const final { return bytes_of(of(fields)); }
  double ops(const void* fields) const final { return ops_of(of(fields)); }
  double distance(const void* a, const void* b) const final {
    P first = of(a), second = of(b);
    SizeFields one(true), other(true);
    Fields::visit(first, one);
    Fields::visit(second, other);
    return one.any && first == second ? std::fabs(std::log2(one.product / other.product)) : -1;
  }
  std::int64_t size_bucket(const void* fields) const final { return size_bucket_of(of(fields)); }

  Contract contract(const Problem& problem) const final { return contract_of(fields_of(problem)); }
  void describe(const Problem& problem, Task& task) const final {
    describe_task(fields_of(problem), task);
    take_arguments(contract(problem), task);
  }
  void run_on_host(const Problem& problem, const Task& task,
                   std::span<const std::span<std::byte>> buffers) const final {
    compute(fields_of(problem), task, buffers);
  }
  HostCheck check_on_host(const Problem& problem, const Task& task,
                          std::span<const std::span<std::byte>> buffers) const final {
    return judge(fields_of(problem), task, buffers);
  }

  std::span<const Family* const> cpu_families() const override { return {}; }
  // Most operations have one order of weights and nothing to recommend.
  std::optional<Problem> packed(const Problem&, const Arch&) const override { return {}; }
  std::optional<Repack> repack(const Problem&) const override { return {}; }
  std::vector<Recommendation> recommended(const Problem&, const Arch&) const override { return {}; }
  std::optional<Candidate> oracle(const Problem& problem, const Arch& arch) const override {
    const std::span<const Family* const> list = arch.cpu ? cpu_families() : families();
    if (list.empty()) return {};
    const std::vector<Candidate> all = list.back()->candidates(problem, arch);
    if (all.empty()) return {};
    return all.front();
  }

 protected:
  using HostBuffers = std::span<const std::span<std::byte>>;

  virtual void check(const P& fields) const = 0;  // throws Error naming the field
  virtual void make_canonical(P&) const {}        // gives what means the same one form
  virtual Extents extents_of(const P& fields) const = 0;
  virtual void set_rows(P& fields, std::int64_t rows) const = 0;  // does nothing if they are fixed
  virtual std::int64_t size_bucket_of(const P&) const { return 0; }
  virtual double bytes_of(const P& fields) const = 0;
  virtual double ops_of(const P& fields) const = 0;
  virtual Contract contract_of(const P& fields) const = 0;
  virtual void describe_task(const P& fields, Task& task) const = 0;  // `arguments` follow from the contract
  virtual void compute(const P& fields, const Task& task, HostBuffers buffers) const = 0;     // run_on_host()
  virtual HostCheck judge(const P& fields, const Task& task, HostBuffers buffers) const = 0;  // check_on_host()

 private:
  static const P& of(const void* fields) { return *static_cast<const P*>(fields); }
  static const P& fields_of(const Problem& problem) { return *problem.as<P>(); }
  static P blank() { return Fields::blank(Format::all().front()); }
  std::shared_ptr<const void> checked(P fields) const {
    make_canonical(fields);
    check(fields);
    return std::make_shared<const P>(std::move(fields));
  }
  std::string print(const P& fields, bool to_first_size) const {
    const P defaults = blank();
    PrintFields visitor(&fields, &defaults, to_first_size);
    Fields::visit(fields, visitor);
    return std::string(name()) + visitor.text;
  }
};

}  // namespace tilewright
