// SPDX-License-Identifier: Apache-2.0
// The operations unscale and update_scale. Both are exact: a kernel gives the host's bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "support/must_be.h"
#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/common/exact_floats.h"
#include "templates/common/operation_of.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/loss_scale/loss_scale.h"
#include "templates/operations/loss_scale/params.cuh"

namespace tilewright::loss_scale {
namespace {

using tw::loss_scale::Step;
using tw::loss_scale::UpdateShape;

static_assert(sizeof(UnscaleArgs) == sizeof(tw::loss_scale::Args) &&
              offsetof(UnscaleArgs, table) == offsetof(tw::loss_scale::Args, table) &&
              offsetof(UnscaleArgs, scale) == offsetof(tw::loss_scale::Args, scale) &&
              offsetof(UnscaleArgs, found_inf) == offsetof(tw::loss_scale::Args, found_inf) &&
              offsetof(UnscaleArgs, found_before) == offsetof(tw::loss_scale::Args, found_before) &&
              offsetof(UnscaleArgs, workspace) == offsetof(tw::loss_scale::Args, workspace) &&
              offsetof(UnscaleArgs, pieces) == offsetof(tw::loss_scale::Args, pieces));
static_assert(sizeof(UnscalePiece) == sizeof(tw::loss_scale::Piece));
static_assert(sizeof(UpdateScaleArgs) == sizeof(tw::loss_scale::UpdateArgs) &&
              offsetof(UpdateScaleArgs, good_steps) == offsetof(tw::loss_scale::UpdateArgs, good_steps) &&
              offsetof(UpdateScaleArgs, found_inf) == offsetof(tw::loss_scale::UpdateArgs, found_inf) &&
              offsetof(UpdateScaleArgs, new_scale) == offsetof(tw::loss_scale::UpdateArgs, new_scale) &&
              offsetof(UpdateScaleArgs, new_good_steps) == offsetof(tw::loss_scale::UpdateArgs, new_good_steps));

// What a task's pieces are: one in each stretch of `elements`, in another order; every fifth begins and ends within it.
UnscalePiece task_piece(const Unscale& u, std::int64_t index, std::int64_t pieces) {
  const std::int64_t place = pieces - 1 - index, bytes = fast_path(u.x).element_bytes;
  const std::int64_t cut = place % 5 == 2 && u.elements > 4 ? 1 + place / 5 % 3 : 0;
  return {(place * u.elements + cut) * bytes, u.elements - (cut ? cut + 1 : 0)};
}

std::span<const UnscalePiece> table_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const UnscalePiece*>(bytes.data()), bytes.size() / sizeof(UnscalePiece)};
}
float float_at(std::span<const std::byte> bytes) {
  float v = 0;
  std::memcpy(&v, bytes.data(), sizeof v);
  return v;
}

// body(index of an element in x) of every piece. Throws Error (invalid_argument) for a piece that is not in x.
template <class Body>
void for_elements(const Unscale& u, std::span<const UnscalePiece> table, std::int64_t bytes, const Body& body) {
  const std::int64_t element = fast_path(u.x).element_bytes;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto& [at, elements] = table[i];
    if (at < 0 || at > bytes || at % element != 0)
      throw must_be(fmt::format("table[{}].at", i), at, fmt::format("a multiple of {} from 0 to {}", element, bytes));
    if (elements < 0 || elements > (bytes - at) / element)
      throw must_be(fmt::format("table[{}].elements", i), elements,
                    fmt::format("0 to {}, the elements that x has from there on", (bytes - at) / element));
    for (std::int64_t e = 0; e < elements; ++e) body(static_cast<std::size_t>(at / element + e));
  }
}

struct UnscaleFields {
  static Unscale blank(Format any) { return {.x = any}; }
  template <class P, class V>
  static void visit(P& problem, V&& visit) {
    auto& [x, pieces, elements] = problem;
    visit(required("x", "format of the tensors: f32 f16 bf16"), x);
    visit(required("pieces", "pieces of tensors", Role::rows), pieces);
    visit(optional("elements", "of a piece, about; 8192 by default", Role::size), elements);
  }
};

class UnscaleOperation final : public OperationOf<Unscale, UnscaleFields> {
 public:
  std::string_view title() const override {
    return "gradients of a scaled loss times 1 / scale, many tensors at once, and whether one overflowed";
  }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&vectors(), &reference()};
    return list;
  }

 protected:
  void check(const Unscale& u) const override {
    check_extent("pieces", u.pieces);
    check_some("elements", u.elements, "pieces");
    check_float("x", u.x);
    check_matrix("x", u.x, u.pieces, u.elements, "elements");
  }
  Extents extents_of(const Unscale& u) const override { return {u.pieces, u.elements}; }
  void set_rows(Unscale& u, std::int64_t rows) const override { u.pieces = rows; }
  double bytes_of(const Unscale& u) const override {
    return 2 * static_cast<double>(u.x.total_bytes(u.pieces, u.elements)) +
           static_cast<double>(u.pieces) * sizeof(UnscalePiece) + 2 * sizeof(float);
  }
  double ops_of(const Unscale&) const override { return 0; }

  Contract contract_of(const Unscale& u) const override {
    Contract c;
    c.op = name();
    c.args_bytes = sizeof(UnscaleArgs);
    c.rows_at = offsetof(UnscaleArgs, pieces);
    c.rows_name = "pieces";
    c.cols = u.elements;
    c.pointers = {{"x", offsetof(UnscaleArgs, x), 16, false},
                  {"y", offsetof(UnscaleArgs, y), 16, false},
                  {"table", offsetof(UnscaleArgs, table), alignof(UnscalePiece), true},
                  {"scale", offsetof(UnscaleArgs, scale), alignof(float), true},
                  {"found_inf", offsetof(UnscaleArgs, found_inf), alignof(float), true},
                  {"found_before", offsetof(UnscaleArgs, found_before), alignof(float), false},
                  {"workspace", offsetof(UnscaleArgs, workspace), Unscale::kWorkspace, true}};
    const tw::loss_scale::Shape shape{u.elements};
    c.constants.resize(sizeof shape);
    std::memcpy(c.constants.data(), &shape, sizeof shape);
    return c;
  }

  void describe_task(const Unscale& u, Task& task) const override {
    task.weights = 0;
    const int x = add_matrix(task, "x", {u.x, u.pieces, u.elements}, true, false).data;
    add_matrix(task, "y", {u.x, u.pieces, u.elements}, true, true);
    for (Matrix& m : task.matrices) m.any_axes = true;
    Buffer& values = task.buffers[static_cast<std::size_t>(x)];
    values.fill = [u, plain = values.fill](std::span<std::byte> bytes, std::uint64_t seed) {
      plain(bytes, seed);
      const float infinity = std::numeric_limits<float>::infinity();
      const std::size_t at = bytes.size() / 8 * 4;
      if (seed % 2 == 0 && at + 4 <= bytes.size())  // found_inf is 1 then
        u.x.info().encode(&infinity, 1, 1, {&bytes[at], nullptr, nullptr}, 0);
    };
    task.buffers.push_back({.name = "table",
                            .bytes = static_cast<std::size_t>(u.pieces) * sizeof(UnscalePiece),
                            .row_bytes = sizeof(UnscalePiece),
                            .fill =
                                [u](std::span<std::byte> bytes, std::uint64_t) {
                                  const auto pieces = static_cast<std::int64_t>(bytes.size() / sizeof(UnscalePiece));
                                  for (std::int64_t i = 0; i < pieces; ++i) {
                                    const UnscalePiece piece = task_piece(u, i, pieces);
                                    std::memcpy(&bytes[static_cast<std::size_t>(i) * sizeof piece], &piece,
                                                sizeof piece);
                                  }
                                },
                            .element = "int64"});
    const int scale = add_matrix(task, "scale", {Format::parse("f32"), 1, 1}, false, false).data;
    task.buffers[static_cast<std::size_t>(scale)].fill = [](std::span<std::byte> bytes, std::uint64_t) {
      constexpr float kScale = 1536;  // no power of two, so that products are rounded
      std::memcpy(bytes.data(), &kScale, sizeof kScale);
    };
    add_matrix(task, "found_inf", {Format::parse("f32"), 1, 1}, false, true);
    // What launches find is their own.
    task.buffers.push_back(
        {.name = "found_before",
         .bytes = sizeof(float),
         .fill = [](std::span<std::byte> bytes, std::uint64_t) { std::ranges::fill(bytes, std::byte{0}); },
         .element = "f32"});
    task.buffers.push_back({.name = "workspace", .bytes = Unscale::kWorkspace, .scratch = true});
    task.verify_rows = verify_rows_of(u.pieces, static_cast<double>(u.elements));
    // Bytes between pieces are nobody's, and a kernel leaves them as they are: all alike.
    task.compare = [u](std::span<const std::byte> got, std::span<const std::byte> oracle,
                       std::span<const std::vector<std::byte>>, std::int64_t rows) -> std::string {
      const auto row_bytes = static_cast<std::size_t>(u.x.total_bytes(1, u.elements));
      const std::size_t bytes = row_bytes * static_cast<std::size_t>(rows);
      if (got.size() < bytes + sizeof(float) || oracle.size() < bytes + sizeof(float)) return "too few bytes";
      std::vector<bool> within(bytes);
      const auto element = static_cast<std::size_t>(fast_path(u.x).element_bytes);
      for (std::int64_t i = 0; i < rows; ++i) {
        const UnscalePiece piece = task_piece(u, i, rows);
        const auto first = within.begin() + piece.at;
        std::fill(first, first + piece.elements * static_cast<std::int64_t>(element), true);
      }
      const std::byte* poison = nullptr;
      for (std::size_t i = 0; i < bytes; ++i) {
        if (within[i] ? got[i] == oracle[i] : (poison == nullptr || got[i] == *poison)) {
          if (!within[i]) poison = &got[i];
          continue;
        }
        if (!within[i]) return fmt::format("wrote y byte {}, which is of no piece", i);
        return fmt::format("y byte {} = {:#04x}, expected {:#04x}", i, int(got[i]), int(oracle[i]));
      }
      const float is = float_at(got.subspan(bytes)), wanted = float_at(oracle.subspan(bytes));
      return is == wanted ? "" : fmt::format("found_inf = {}, expected {}", is, wanted);
    };
  }

  void compute(const Unscale& u, const Task& task, HostBuffers buffers) const override {
    const ExactFloats exact;
    const std::vector<float> from = decoded(matrix(task, "x"), buffers);
    const tw::loss_scale::Inverse inverse(float_at(of(task, buffers, "scale")));
    const std::span<std::byte> y = of(task, buffers, "y");
    const std::size_t element = static_cast<std::size_t>(fast_path(u.x).element_bytes);
    float seen = 0;
    for_elements(u, table_of(of(task, buffers, "table")), static_cast<std::int64_t>(y.size()), [&](std::size_t i) {
      tw::loss_scale::look_at(seen, from[i]);
      const float v = tw::loss_scale::unscaled(from[i], inverse.factor);
      u.x.info().encode(&v, 1, 1, {y.data() + i * element, nullptr, nullptr}, 0);
    });
    const bool before = float_at(of(task, buffers, "found_before")) != 0;
    const float found = before || inverse.bad || tw::is_nan(seen) ? 1.0f : 0.0f;
    std::memcpy(of(task, buffers, "found_inf").data(), &found, sizeof found);
  }

  // By products of doubles, which hold those of floats.
  HostCheck judge(const Unscale& u, const Task& task, HostBuffers buffers) const override {
    const std::vector<float> from = decoded(matrix(task, "x"), buffers), to = decoded(matrix(task, "y"), buffers);
    const float scale = float_at(of(task, buffers, "scale"));
    const double factor = static_cast<float>(1.0 / static_cast<double>(scale));
    bool found = float_at(of(task, buffers, "found_before")) != 0 || !(scale > 0 && std::isfinite(scale));
    HostCheck check;
    for_elements(u, table_of(of(task, buffers, "table")), static_cast<std::int64_t>(of(task, buffers, "x").size()),
                 [&](std::size_t i) {
                   found = found || !std::isfinite(from[i]);
                   const std::vector<float> product = {static_cast<float>(static_cast<double>(from[i]) * factor)};
                   const float wanted = through(u.x, 1, 1, product).front();
                   const bool right = std::isnan(wanted) ? std::isnan(to[i]) : wanted == to[i];
                   if (!right && check.wrong.empty())
                     check.wrong = fmt::format("y element {} = {}, expected {}", i, to[i], wanted);
                   check.infinite += !std::isfinite(wanted);
                   ++check.checked;
                 });
    const float got = float_at(of(task, buffers, "found_inf"));
    if (check.wrong.empty() && got != (found ? 1.0f : 0.0f))
      check.wrong = fmt::format("found_inf = {}, expected {}", got, found ? 1 : 0);
    check.outputs = check.checked;
    return check;
  }

 private:
  static std::span<std::byte> of(const Task& task, HostBuffers buffers, std::string_view name) {
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (std::string_view(task.buffers[i].name).substr(0, task.buffers[i].name.find('.')) == name) return buffers[i];
    return {};
  }
};

struct UpdateFields {
  static UpdateScale blank(Format) { return {}; }
  template <class P, class V>
  static void visit(P& problem, V&& visit) {
    auto& [growth, backoff, interval] = problem;
    visit(optional("growth", "factor after enough good steps, more than 1; 2 by default"), growth);
    visit(optional("backoff", "factor after an overflow, between 0 and 1; 0.5 by default"), backoff);
    visit(optional("interval", "good steps in a row until the scale grows; 2000 by default"), interval);
  }
};

class UpdateScaleOperation final : public OperationOf<UpdateScale, UpdateFields> {
 public:
  std::string_view title() const override { return "the loss scale of the next step"; }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&one_step()};
    return list;
  }

 protected:
  void check(const UpdateScale& u) const override {
    if (!(u.growth > 1 && u.growth <= std::numeric_limits<float>::max()))
      throw must_be("growth", fmt::format("{}", u.growth), "a finite number greater than 1");
    if (!(u.backoff > 0 && u.backoff < 1))
      throw must_be("backoff", fmt::format("{}", u.backoff), "greater than 0 and less than 1");
    check_some("interval", u.interval);
  }
  Extents extents_of(const UpdateScale&) const override { return {1, 1, true}; }
  void set_rows(UpdateScale&, std::int64_t) const override {}
  double bytes_of(const UpdateScale&) const override { return 2 * (sizeof(float) + sizeof(std::int32_t)) + 4; }
  double ops_of(const UpdateScale&) const override { return 0; }

  Contract contract_of(const UpdateScale& u) const override {
    Contract c;
    c.op = name();
    c.args_bytes = sizeof(UpdateScaleArgs);
    c.rows_name = std::string("steps");
    c.rows = c.cols = 1;
    c.pointers = {{"scale", offsetof(UpdateScaleArgs, scale), 4, true},
                  {"good_steps", offsetof(UpdateScaleArgs, good_steps), 4, true},
                  {"found_inf", offsetof(UpdateScaleArgs, found_inf), 4, true},
                  {"new_scale", offsetof(UpdateScaleArgs, new_scale), 4, true},
                  {"new_good_steps", offsetof(UpdateScaleArgs, new_good_steps), 4, true}};
    const UpdateShape shape = shape_of(u);
    c.constants.resize(sizeof shape);
    std::memcpy(c.constants.data(), &shape, sizeof shape);
    return c;
  }

  void describe_task(const UpdateScale& u, Task& task) const override {
    const auto word = [&](const char* name, const char* element, bool output, auto value) {
      task.buffers.push_back({.name = name, .bytes = 4, .output = output});
      task.buffers.back().element = element;
      if (!output)
        task.buffers.back().fill = [value](std::span<std::byte> bytes, std::uint64_t seed) {
          const auto v = value(seed);
          static_assert(sizeof v == 4);
          std::memcpy(bytes.data(), &v, sizeof v);
        };
    };
    word("scale", "f32", false, [](std::uint64_t) { return 65536.0f; });
    // The first seed's scale grows, the second's shrinks.
    word("good_steps", "int32", false,
         [last = static_cast<std::int32_t>(u.interval - 1)](std::uint64_t) { return last; });
    word("found_inf", "f32", false, [](std::uint64_t seed) { return seed % 2 ? 0.0f : 1.0f; });
    word("new_scale", "f32", true, [](std::uint64_t) { return 0.0f; });
    word("new_good_steps", "int32", true, [](std::uint64_t) { return 0.0f; });
    task.verify_rows = 1;
    task.compare = [outputs = row_outputs(task)](std::span<const std::byte> got, std::span<const std::byte> oracle,
                                                 std::span<const std::vector<std::byte>>,
                                                 std::int64_t) { return compare_bytes(outputs, got, oracle, 1); };
  }

  void compute(const UpdateScale& u, const Task&, HostBuffers buffers) const override {
    const ExactFloats exact;
    std::int32_t good = 0;
    std::memcpy(&good, buffers[1].data(), sizeof good);
    const Step next = next_step({float_at(buffers[0]), good}, float_at(buffers[2]), shape_of(u));
    std::memcpy(buffers[3].data(), &next.scale, sizeof next.scale);
    std::memcpy(buffers[4].data(), &next.good, sizeof next.good);
  }
  HostCheck judge(const UpdateScale& u, const Task& task, HostBuffers buffers) const override {
    HostCheck check = check_bytes(task, buffers, 1, [&](HostBuffers again) { compute(u, task, again); });
    check.checked = check.outputs = 2;
    return check;
  }

 private:
  static UpdateShape shape_of(const UpdateScale& u) { return {u.growth, u.backoff, u.interval}; }
};

}  // namespace

const Operation& unscale() {
  static const UnscaleOperation operation;
  return operation;
}
const Operation& update_scale() {
  static const UpdateScaleOperation operation;
  return operation;
}

}  // namespace tilewright::loss_scale
