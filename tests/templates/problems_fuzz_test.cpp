// SPDX-License-Identifier: Apache-2.0
// Problems written by their grammar: every operation's own list of fields says what may stand where. A text is refused
// with a reason, or it is a problem for which everything that costs little can be asked.
// TILEWRIGHT_PROBLEMS says how many texts are tried, TILEWRIGHT_SEED which.
#include <tilewright/arch.h>
#include <tilewright/error.h>
#include <tilewright/family.h>
#include <tilewright/operation.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/sentence.h"
#include "templates/common/families.h"

using namespace tilewright;

namespace {

constexpr long kProblems = 40000;  // takes about three seconds

long from_environment(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atol(text) : otherwise;
}

class Writer {
 public:
  explicit Writer(unsigned long seed) : random_(seed) {}

  std::size_t below(std::size_t n) { return random_() % n; }
  template <class List>
  const auto& one_of(const List& list) {
    return list[below(std::size(list))];
  }

  std::string value(const FieldInfo& field) {
    if (below(200) == 0) return one_of(std::array<std::string, 6>{"", "-1", "x", "1e999", "0x", "9223372036854775807"});
    if (field.value == "FORMAT") return std::string(one_of(formats_).name());
    if (field.value == "NUMBER")
      return one_of(std::array<std::string, 7>{"1", "0.5", "-2", "0", "1e-40", "1e30", "nan"});
    if (field.value == "INTEGER") return integer();
    if (field.value == "INTEGERxINTEGER..") return axes([&] { return integer(); });
    if (field.value == "INTEGER[:INTEGER]x..") return axes([&] { return small() + (below(3) ? "" : ":" + small()); });
    if (field.value == "zero|replicate|reflectx..")
      return axes([&] { return one_of(std::array<std::string, 3>{"zero", "replicate", "reflect"}); });
    if (field.value == "e2m1/INTEGER") return "e2m1/" + (below(4) ? std::to_string(16 << below(5)) : integer());
    if (field.value == "NAME") return one_of(encoders_);
    return one_of(words(field.value));
  }

 private:
  // Mostly whole blocks and tiles, and sizes that a kernel has reason to fear.
  std::string integer() {
    static constexpr std::int64_t kSizes[] = {
        0,   1,    2,    3,    4,     7,     8,       16,         17,
        32,  48,   64,   100,  128,   256,   384,     512,        640,
        768, 1024, 4096, 5120, 14336, 65536, 1000000, 0x7fffffff, std::int64_t{1} << 40};
    return std::to_string(below(4) ? kSizes[below(22)] : one_of(kSizes));
  }
  std::string small() { return std::to_string(below(below(8) ? 3 : 300)); }
  template <class Part>
  std::string axes(const Part& part) {
    std::string text = part();
    for (std::size_t more = below(3); more > 0; --more) text += "x" + part();
    return text;
  }
  static std::vector<std::string> words(std::string text) {
    std::vector<std::string> list(1);
    for (const char c : text)
      if (c == '|')
        list.emplace_back();
      else
        list.back() += c;
    return list;
  }

  std::mt19937_64 random_;
  const std::vector<Format> formats_ = [] {
    const auto all = Format::all();
    return std::vector<Format>(all.begin(), all.end());
  }();
  const std::vector<std::string> encoders_ = [this] {
    std::vector<std::string> names;
    for (const Format f : formats_) names.insert(names.end(), f.info().encoders.begin(), f.info().encoders.end());
    return names;
  }();
};

// Fields of a text and their values, in the order of the operation's list.
using Text = std::map<std::string, std::string>;

std::string written(const Operation& op, const Text& text) {
  std::string all(op.name());
  for (const auto& [field, value] : text) all += " " + field + "=" + value;
  return all;
}

bool finite(double v) { return std::isfinite(v) && v >= 0; }

void ask_values(const Problem& p) {
  const Problem again = Problem::parse(p.text());
  REQUIRE(again == p);
  REQUIRE(again.text() == p.text());
  REQUIRE(again.hash() == p.hash());
  REQUIRE(p.text().starts_with(p.neighbours_prefix()));
  REQUIRE(finite(p.min_bytes()));
  REQUIRE(finite(p.ops()));
  REQUIRE(p.rows() >= 0);
  REQUIRE(p.cols() >= 0);
  REQUIRE(p.same_but_rows(again));
  REQUIRE(p.size_bucket() == again.size_bucket());
  (void)p.distance(again);
  for (const std::int64_t rows : {0, 1, 4097}) {
    const Problem other = p.with_rows(rows);
    REQUIRE(other.rows() == (p.fixed_rows() ? p.rows() : rows));
    REQUIRE(other.hash() == p.hash());
  }
}

void ask_task(const Problem& p) {
  const Contract contract = contract_for(p);
  for (const PointerRule& rule : contract.pointers) REQUIRE(rule.offset + sizeof(void*) <= contract.args_bytes);
  for (const StrideRule& rule : contract.strides) REQUIRE(rule.offset + sizeof(std::int64_t) <= contract.args_bytes);
  Task task;
  task.rows = p.rows(), task.cols = p.cols();
  p.operation().describe(p, task);
  for (const Buffer& b : task.buffers) REQUIRE(static_cast<std::ptrdiff_t>(b.bytes) >= 0);
  for (const Matrix& m : task.matrices)
    for (const int slot : {m.data, m.scales, m.global}) REQUIRE(slot < static_cast<int>(task.buffers.size()));
  const std::vector<void*> pointers(task.buffers.size(), nullptr);
  REQUIRE(contract.pointers.size() == task.buffers.size());  // describe() has compared their names
  if (contract.rows_at == Contract::kFixedRows) REQUIRE(contract.rows == p.rows());
  REQUIRE(task.arguments(pointers, p.rows()).size() == contract.args_bytes);
  try {
    if (const auto repack = p.operation().repack(p)) ask_values(repack->problem);
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::too_large);  // a launch packs so many tiles; a stack may have more
  }
}

// `text`: whether a kernel is written out too, which takes longest.
void ask_kernels(const Problem& p, const Arch& target, bool text, Writer& writer) {
  INFO(target.name);
  bool served = false;
  for (const Family* family : families(p.op(), target)) {
    INFO(family->name());
    const std::string why_not = family->why_not(p, target);
    INFO(why_not);
    REQUIRE((why_not.empty() || is_sentence(why_not)));
    const auto candidates = family->candidates(p, target);
    if (!why_not.empty()) REQUIRE(candidates.empty());
    if (candidates.empty()) continue;
    served = true;
    const Candidate& candidate = writer.one_of(candidates);
    INFO(candidate.text());
    REQUIRE(illegal(p, target, candidate).empty());
    const Traits traits = family->traits(p, target, candidate);
    for (const double v : {traits.blocks, traits.global_bytes, traits.unique_bytes, traits.mma_ops, traits.alu_ops})
      REQUIRE(finite(v));
    if (!text) continue;
    const Source source = family->source(p, target, candidate);
    REQUIRE_FALSE(source.entry.empty());
    REQUIRE((!source.text.empty() || source.host));
  }
  if (const auto packed = p.operation().packed(p, target)) {
    ask_values(*packed);
    REQUIRE_FALSE(p.operation().packed(*packed, target));
  }
  for (const Recommendation& r : p.operation().recommended(p, target)) ask_values(r.problem);
  // The oracle of as many rows as are verified: launches have no room for any number.
  const auto oracle = p.operation().oracle(p, target);
  if (served && oracle && !p.fixed_rows()) REQUIRE(illegal(p.with_rows(1), target, *oracle).empty());
}

// Which fields a refusal has come to by their values; "" that the text is a problem.
std::string refused_field(const std::string& text, std::optional<Problem>& problem) {
  INFO(text);
  try {
    problem = Problem::parse(text);
    return {};
  } catch (const Error& error) {
    INFO(error.what());
    REQUIRE_FALSE(error.field().empty());
    REQUIRE(is_sentence(error.what()));
    return error.field();
  }
}

}  // namespace

TEST_CASE("problems written by their grammar are refused with a reason or can be asked everything", "[problems_fuzz]") {
  const long wanted = from_environment("TILEWRIGHT_PROBLEMS", kProblems);
  Writer writer(static_cast<unsigned long>(from_environment("TILEWRIGHT_SEED", 1)));
  std::vector<const Arch*> targets;
  for (const Arch& target : archs()) targets.push_back(&target);
  for (const Arch& target : cpu_archs()) targets.push_back(&target);

  std::map<const Operation*, std::vector<Text>> accepted;
  std::map<const Operation*, std::set<std::string>> met;  // fields of accepted texts
  for (long i = 0; i < wanted; ++i) {
    const Operation* const op = writer.one_of(operations());
    const auto fields = op->fields();
    // A change to a problem that was accepted, or a new text; half of them for a field that none has had yet.
    const FieldInfo* sought = &writer.one_of(fields);
    if (writer.below(2))
      for (const FieldInfo& field : fields)
        if (!met[op].count(field.name)) sought = &field;
    Text text;
    if (auto& known = accepted[op]; !known.empty() && writer.below(3)) {
      text = writer.one_of(known);
    } else {
      for (const FieldInfo& field : fields)
        if (field.required || writer.below(6) == 0) text[field.name] = writer.value(field);
    }
    text[sought->name] = writer.value(*sought);
    // What a refusal names is left out or given another value; now and then anything else is.
    std::optional<Problem> problem;
    for (int attempt = 0; attempt < 12 && !problem; ++attempt) {
      const std::string wrong = refused_field(written(*op, text), problem);
      if (problem) break;
      const auto at = std::find_if(fields.begin(), fields.end(), [&](const FieldInfo& f) { return f.name == wrong; });
      const FieldInfo& field = at == fields.end() || writer.below(3) == 0 ? writer.one_of(fields) : *at;
      if (!field.required && &field != sought && text.count(field.name) && writer.below(2))
        text.erase(field.name);
      else
        text[field.name] = writer.value(field);
    }
    if (!problem) continue;
    accepted[op].push_back(text);
    for (const auto& [field, value] : text) met[op].insert(field);
    INFO(written(*op, text));
    ask_values(*problem);
    ask_task(*problem);
    ask_kernels(*problem, *writer.one_of(targets), i % 64 == 0, writer);
  }
  if (wanted < kProblems) return;
  // The writer reaches every field of every operation.
  for (const Operation* op : operations())
    for (const FieldInfo& field : op->fields()) {
      INFO(op->name() << " " << field.name);
      CHECK(met[op].count(field.name) == 1);
    }
}

TEST_CASE("texts that broke something once", "[problems_fuzz]") {
  Writer writer(1);
  for (const char* text :
       {// A packed w was asked for its bytes before anybody had asked whether its format has panels.
        "gemm x=q8_1 w=q5_0 y=f32 m=3 n=16 k=128 pack=panels groups=2",
        "gemm x=int8 w=nf4 y=e4m3 m=128 n=8 k=5120 pack=panels groups=100",
        // The prefix that neighbours share named a size that texts leave out.
        "unscale x=bf16 pieces=1024",
        // Recommended a workspace that no problem can have.
        "conv x=f32 w=f32 y=int8 n=640 c=100 in=768x64 k=640 kernel=64 stride=4x256 x_layout=ncdhw y_layout=ncdhw",
        // As a matrix, x of which each pixel is part of many rows has more bytes than a gemm may.
        "conv x=e4m3 w=q6_k y=e5m2 n=3 c=8 in=768x128x768 k=14336 kernel=100",
        // Recommended panels that are for float weights.
        "conv x=int8 w=int8 y=f16 n=1 c=5120 in=8x768 k=48 kernel=4x512 stride=384x8",
        // Recommended to leave w as it is, which groups with x_from cannot do.
        "gemm x=int8_row w=q6_k y=e5m2 m=1 n=32 k=5120 pack=panels groups=1024 group_layout=masked x_from=f16"}) {
    INFO(text);
    std::optional<Problem> problem;
    if (!refused_field(text, problem).empty()) continue;
    ask_values(*problem);
    ask_task(*problem);
    for (const Arch& target : archs()) ask_kernels(*problem, target, false, writer);
    for (const Arch& target : cpu_archs()) ask_kernels(*problem, target, false, writer);
  }
}
