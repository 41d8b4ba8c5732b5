// SPDX-License-Identifier: Apache-2.0
#include <tilewright/error.h>
#include <tilewright/pack.h>
#include <tilewright/problem.h>

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <map>

#include "templates/fast_path.h"

namespace tilewright {
namespace {

constexpr std::int64_t kMaxExtent = (1ll << 31) - 1;
constexpr std::int64_t kMaxBytes = 1ll << 47;
constexpr const char* kActivations[] = {"none", "relu", "gelu", "gelu_tanh", "silu"};
constexpr const char* kGlobals[] = {"none", "mul", "div"};
constexpr const char* kPackings[] = {"none", "tiles"};
constexpr const char* kAccumulations[] = {"full", "fast"};
constexpr const char* kWeights[] = {"variable", "constant"};
constexpr const char* kInverse[] = {"0", "1"};

Error invalid(std::string field, std::string value, std::string allowed) {
  return Error(ErrorCode::invalid_argument, std::move(field), std::move(value), std::move(allowed));
}

void check_extent(const char* field, std::int64_t value) {
  if (value < 0) throw invalid(field, std::to_string(value), "0 to 2147483647");
  if (value > kMaxExtent) throw Error(ErrorCode::too_large, field, std::to_string(value), "0 to 2147483647");
}
void check_matrix(const char* field, Format f, std::int64_t rows, std::int64_t cols, const char* cols_field) {
  if (cols % f.block() != 0)
    throw invalid(cols_field, std::to_string(cols),
                  fmt::format("a multiple of {}, the block of {}={}", f.block(), field, f.name()));
  if (f.total_bytes(rows, cols) > kMaxBytes)
    throw Error(ErrorCode::too_large, field, fmt::format("{} of {} x {}", f.name(), rows, cols), "at most 2^47 bytes");
}
bool is_plain(Format f) { return f.info().block == 1 && f.info().streams.size() == 1; }
bool is_float(Format f) {  // a plain one of 16 bits at least
  const Element e = fast_path(f).element;
  return is_plain(f) && (e == Element::f32 || e == Element::f16 || e == Element::bf16);
}
bool has_global(Format f) {
  for (const StreamSpec& s : f.info().streams)
    if (s.scope == Scope::tensor) return true;
  return false;
}

// Formats of weights: rows that share scales cannot come one by one.
void check_rows_apart(const char* field, Format f) {
  for (const StreamSpec& s : f.info().streams)
    if (s.rows > 1)
      throw Error(ErrorCode::unsupported, field, std::string(f.name()),
                  fmt::format("a format whose rows stand alone: in {} {} rows share a scale", f.name(), s.rows));
}

void check_x_from(const Gemm& g) {
  if (!g.x_from) return;
  const std::string name(g.x_from->name());
  if (!is_float(*g.x_from)) throw Error(ErrorCode::unsupported, "x_from", name, "f32, f16 or bf16");
  if (!fast_path(g.x).code_lanes)
    throw Error(ErrorCode::unsupported, "x_from", name,
                fmt::format("left out: no kernel quantizes to x={} (to q8_1 some do); cast x first", g.x.name()));
  check_matrix("x_from", *g.x_from, g.m, g.k, "k");
}

// Whether a matrix of weights can be reordered for `x`. `field`: what asks for it.
void check_tiles(const char* field, std::string value, Format w, Format x, std::int64_t n, std::int64_t k) {
  const TileInfo* tiles = tile_info(w, x);
  if (!tiles)
    throw Error(ErrorCode::unsupported, field, std::move(value),
                fmt::format("w={} has no tiles for x={}", w.name(), x.name()));
  if (n % kTileRows != 0)
    throw invalid("n", std::to_string(n), fmt::format("a multiple of {}, the rows of a tile", kTileRows));
  if (k % tiles->panel_k != 0)
    throw invalid("k", std::to_string(k),
                  fmt::format("a multiple of {}, the columns of a tile for x={}", tiles->panel_k, x.name()));
}

std::int64_t w_bytes(const Gemm& g) {
  return packed_bytes(g, "data") + packed_bytes(g, "scales") + packed_bytes(g, "global");
}

// Sums of bytes as they are.
void check_exact(const Gemm& g) {
  for (const auto& [field, f] : {std::pair{"x", g.x}, std::pair{"w", g.w}})
    if (!is_plain(f) || fast_path(f).element != Element::i8)
      throw Error(ErrorCode::unsupported, field, std::string(f.name()), "int8: y=int32 is for exact sums of integers");
  if (g.k > kMostBytes)
    throw Error(ErrorCode::too_large, "k", std::to_string(g.k),
                fmt::format("at most {}, the products of bytes that y=int32 holds", kMostBytes));
  if (g.alpha != 1.0) throw invalid("alpha", fmt::format("{}", g.alpha), "1: y=int32 is exact");
  if (g.act != Activation::none) throw invalid("act", kActivations[static_cast<int>(g.act)], "none: y=int32 is exact");
  if (g.bias && fast_path(*g.bias).element != Element::i32)
    throw Error(ErrorCode::unsupported, "bias", std::string(g.bias->name()), "int32, as y is");
  if (g.c) throw Error(ErrorCode::unsupported, "c", std::string(g.c->name()), "left out: y=int32 is exact");
}

void check_epilogue(const Gemm& g) {
  const Element y = fast_path(g.y).element;
  if (y == Element::i32) {
    check_exact(g);
  } else {
    if (g.bias && !is_float(*g.bias))
      throw Error(ErrorCode::unsupported, "bias", std::string(g.bias->name()), "f32, f16 or bf16");
    if (g.c && !is_float(*g.c)) throw Error(ErrorCode::unsupported, "c", std::string(g.c->name()), "f32, f16 or bf16");
  }
  if (g.c) check_matrix("c", *g.c, g.m, g.n, "n");
  if (!g.c && g.beta != 1.0) throw invalid("beta", fmt::format("{}", g.beta), "left out: there is no c");
  if (!std::isfinite(static_cast<float>(g.beta)) || static_cast<float>(g.beta) == 0.0f)
    throw invalid("beta", fmt::format("{}", g.beta), "a finite number other than 0 (of 0, leave c out)");
  if (g.y_scale != 1.0 && fast_path(g.y).element_bytes != 1)
    throw invalid("y_scale", fmt::format("{}", g.y_scale),
                  fmt::format("left out: y={} is not int8, e4m3 or e5m2", g.y.name()));
  const auto factor = static_cast<float>(1.0 / g.y_scale);
  if (!(g.y_scale > 0) || !std::isfinite(factor) || factor == 0.0f)
    throw invalid("y_scale", fmt::format("{}", g.y_scale), "a positive number that single precision holds");
}

void validate(const Gemm& g) {
  check_extent("m", g.m);
  check_extent("n", g.n);
  check_extent("k", g.k);
  if (g.n == 0 || g.k == 0) throw invalid(g.n == 0 ? "n" : "k", "0", "1 to 2147483647 (only m may be 0)");
  check_matrix("x", g.x, g.m, g.k, "k");
  check_rows_apart("x", g.x);
  check_x_from(g);
  check_matrix("w", g.w, g.n, g.k, "k");
  for (const auto& [field, f] : {std::pair{"x", g.x}, std::pair{"w", g.w}})
    if (fast_path(f).element == Element::i32)
      throw Error(ErrorCode::unsupported, field, std::string(f.name()), "any format but int32, which is an output's");
  if (!is_plain(g.y))
    throw Error(ErrorCode::unsupported, "y", std::string(g.y.name()), "f32, f16, bf16, int8, int32, e4m3 or e5m2");
  check_matrix("y", g.y, g.m, g.n, "n");
  check_epilogue(g);
  if (g.group != 0 && g.group != g.w.block())
    throw invalid("group", std::to_string(g.group),
                  is_plain(g.w) ? fmt::format("nothing: {} has no groups", g.w.name())
                                : fmt::format("{} (fixed by {}) or left out", g.w.block(), g.w.name()));
  const bool global = has_global(g.x) || has_global(g.w);
  if (global && g.global == Global::none)
    throw invalid("global", "none",
                  "mul (value = code * scale * global) or div (value = code * scale / global), required by " +
                      std::string(has_global(g.w) ? g.w.name() : g.x.name()));
  if (!global && g.global != Global::none)
    throw invalid("global", kGlobals[static_cast<int>(g.global)], "left out: no operand has a tensor-wide scale");
  if (g.accumulation != Accumulation::full && !is_fp8(fast_path(g.x).element))
    throw Error(ErrorCode::unsupported, "accum", "fast", fmt::format("only for fp8, and x={}", g.x.name()));
  if (g.accumulation != Accumulation::full)
    for (const auto& [field, f] : {std::pair{"x", g.x}, std::pair{"w", g.w}})
      if (is_fp8(fast_path(f).element) && f.block() > 1)
        throw Error(ErrorCode::unsupported, "accum", "fast",
                    fmt::format("only for fp8 with scales of whole rows, and {}={} has one per {} columns", field,
                                f.name(), f.block()));
  check_extent("workspace", g.workspace);
  if (g.packing == Packing::tiles) check_tiles("pack", "tiles", g.w, g.x, g.n, g.k);
  if (!std::isfinite(g.alpha)) throw invalid("alpha", fmt::format("{}", g.alpha), "a finite number");
}

void validate(const Cast& c) {
  check_extent("rows", c.rows);
  check_extent("cols", c.cols);
  if (c.cols == 0) throw invalid("cols", "0", "1 to 2147483647 (only rows may be 0)");
  check_matrix("x", c.x, c.rows, c.cols, "cols");
  check_matrix("y", c.y, c.rows, c.cols, "cols");
  check_rows_apart("y", c.y);
  if (!is_float(c.x) && !is_float(c.y))
    throw Error(ErrorCode::unsupported, "y", std::string(c.y.name()),
                fmt::format("f32, f16 or bf16: one side of a cast is a plain float format, and x is {}", c.x.name()));
  if (c.encoder < 0 || c.encoder >= static_cast<int>(c.y.info().encoders.size()))
    throw invalid("encoder", std::to_string(c.encoder),
                  fmt::format("an encoder of {}: {}", c.y.name(), fmt::join(c.y.info().encoders, " ")));
}

Gemm packed_gemm(const Pack& p) {  // of which p makes the weights
  Gemm g{.x = p.x, .w = p.w, .y = p.x, .bias = {}};
  g.n = p.n, g.k = p.k, g.packing = Packing::tiles;
  return g;
}

void validate(const Pack& p) {
  check_extent("n", p.n);
  check_extent("k", p.k);
  if (p.n == 0 || p.k == 0) throw invalid(p.n == 0 ? "n" : "k", "0", "1 to 2147483647");
  check_matrix("w", p.w, p.n, p.k, "k");
  check_tiles("w", std::string(p.w.name()), p.w, p.x, p.n, p.k);
  if (p.n / kTileRows * (p.k / tile_info(p.w, p.x)->panel_k) > kMaxExtent)
    throw Error(ErrorCode::too_large, "n", std::to_string(p.n), "at most 2147483647 tiles");
}

// The words of a problem as field -> value, each taken once.
class Fields {
 public:
  explicit Fields(std::string_view text) : text_(text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t space = text.find(' ', at);
      const std::string_view word = text.substr(at, space - at);
      at = space == std::string_view::npos ? text.size() : space + 1;
      if (word.empty()) continue;
      if (op_.empty()) {
        op_ = word;
        continue;
      }
      const std::size_t equals = word.find('=');
      if (equals == std::string_view::npos || equals == 0)
        throw invalid("problem", std::string(text), fmt::format("words of the form field=value; '{}' is not", word));
      if (!values_.emplace(word.substr(0, equals), word.substr(equals + 1)).second)
        throw invalid(std::string(word.substr(0, equals)), std::string(word.substr(equals + 1)), "given once");
    }
  }
  std::string_view op() const { return op_; }

  std::optional<std::string> take(const std::string& field) {
    const auto it = values_.find(field);
    if (it == values_.end()) return {};
    std::string value = std::move(it->second);
    values_.erase(it);
    return value;
  }
  std::string need(const std::string& field, const char* what) {
    auto value = take(field);
    if (!value) throw invalid(field, "", fmt::format("required: {}", what));
    return *value;
  }
  Format format(const std::string& field) { return parse_format(field, need(field, "a format")); }
  static Format parse_format(const std::string& field, const std::string& name) {
    try {
      return Format::parse(name);
    } catch (const Error& e) {
      throw invalid(field, name, e.allowed());
    }
  }
  std::int64_t integer(const std::string& field) { return parse_integer(field, need(field, "an integer")); }
  static std::int64_t parse_integer(const std::string& field, const std::string& text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) throw Error(ErrorCode::too_large, field, text, "0 to 2147483647");
    if (error != std::errc() || end != text.data() + text.size()) throw invalid(field, text, "an integer");
    return value;
  }
  void number(const std::string& field, double& value) {
    const auto text = take(field);
    if (!text) return;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size()) throw invalid(field, *text, "a number");
  }
  template <std::size_t N>
  int choice(const std::string& field, const char* const (&names)[N], int fallback) {
    const auto value = take(field);
    if (!value) return fallback;
    for (std::size_t i = 0; i < N; ++i)
      if (*value == names[i]) return static_cast<int>(i);
    throw invalid(field, *value, fmt::format("one of {}", fmt::join(names, " ")));
  }
  void finish(const char* allowed) const {
    if (!values_.empty())
      throw invalid(values_.begin()->first, values_.begin()->second,
                    fmt::format("no such field; {} has {}", op_, allowed));
  }

 private:
  std::string text_, op_;
  std::map<std::string, std::string> values_;
};

Gemm parse_gemm(Fields& f) {
  Gemm g{.x = f.format("x"), .w = f.format("w"), .y = f.format("y"), .bias = {}};
  g.m = f.integer("m"), g.n = f.integer("n"), g.k = f.integer("k");
  if (const auto group = f.take("group")) g.group = static_cast<int>(Fields::parse_integer("group", *group));
  if (g.group == g.w.block()) g.group = 0;  // canonical: what the format fixes is not repeated
  g.global = static_cast<Global>(f.choice("global", kGlobals, 0));
  g.packing = static_cast<Packing>(f.choice("pack", kPackings, 0));
  if (const auto from = f.take("x_from")) g.x_from = Fields::parse_format("x_from", *from);
  if (const auto bias = f.take("bias")) g.bias = Fields::parse_format("bias", *bias);
  g.act = static_cast<Activation>(f.choice("act", kActivations, 0));
  f.number("alpha", g.alpha);
  if (const auto c = f.take("c")) g.c = Fields::parse_format("c", *c);
  f.number("beta", g.beta);
  f.number("y_scale", g.y_scale);
  if (const auto bytes = f.take("workspace")) g.workspace = Fields::parse_integer("workspace", *bytes);
  g.constant_weights = f.choice("weights", kWeights, 0) == 1;
  g.accumulation = static_cast<Accumulation>(f.choice("accum", kAccumulations, 0));
  f.finish("x w y m n k group global pack x_from accum bias act alpha c beta y_scale workspace weights");
  return g;
}

Cast parse_cast(Fields& f) {
  Cast c{.x = f.format("x"), .y = f.format("y")};
  c.rows = f.integer("rows"), c.cols = f.integer("cols");
  if (const auto name = f.take("encoder")) {
    c.encoder = -1;
    const auto encoders = c.y.info().encoders;
    for (std::size_t i = 0; i < encoders.size(); ++i)
      if (*name == encoders[i]) c.encoder = static_cast<int>(i);
    if (c.encoder < 0)
      throw invalid("encoder", *name, fmt::format("an encoder of {}: {}", c.y.name(), fmt::join(encoders, " ")));
  }
  f.finish("x y rows cols encoder");
  return c;
}

Pack parse_pack(Fields& f) {
  Pack p{.w = f.format("w"), .x = f.format("x")};
  p.n = f.integer("n"), p.k = f.integer("k");
  p.inverse = f.choice("inverse", kInverse, 0) == 1;
  f.finish("w x n k inverse");
  return p;
}

}  // namespace

Problem::Problem(Gemm gemm) : value_(gemm) { validate(gemm); }
Problem::Problem(Cast cast) : value_(cast) { validate(cast); }
Problem::Problem(Pack pack) : value_(pack) { validate(pack); }

Problem Problem::parse(std::string_view text) {
  Fields fields(text);
  if (fields.op() == "gemm") return Problem(parse_gemm(fields));
  if (fields.op() == "cast") return Problem(parse_cast(fields));
  if (fields.op() == "pack") return Problem(parse_pack(fields));
  throw invalid("operation", std::string(fields.op()), "gemm, cast or pack");
}

std::string Problem::text() const {
  if (const Gemm* g = gemm()) {
    std::string s =
        fmt::format("gemm x={} w={} y={} m={} n={} k={}", g->x.name(), g->w.name(), g->y.name(), g->m, g->n, g->k);
    if (g->group) s += fmt::format(" group={}", g->group);
    if (g->global != Global::none) s += fmt::format(" global={}", kGlobals[static_cast<int>(g->global)]);
    if (g->packing != Packing::none) s += fmt::format(" pack={}", kPackings[static_cast<int>(g->packing)]);
    if (g->x_from) s += fmt::format(" x_from={}", g->x_from->name());
    if (g->bias) s += fmt::format(" bias={}", g->bias->name());
    if (g->accumulation != Accumulation::full)
      s += fmt::format(" accum={}", kAccumulations[static_cast<int>(g->accumulation)]);
    if (g->act != Activation::none) s += fmt::format(" act={}", kActivations[static_cast<int>(g->act)]);
    if (g->alpha != 1.0) s += fmt::format(" alpha={}", g->alpha);
    if (g->c) s += fmt::format(" c={}", g->c->name());
    if (g->beta != 1.0) s += fmt::format(" beta={}", g->beta);
    if (g->y_scale != 1.0) s += fmt::format(" y_scale={}", g->y_scale);
    if (g->workspace) s += fmt::format(" workspace={}", g->workspace);
    if (g->constant_weights) s += " weights=constant";
    return s;
  }
  if (const Pack* p = pack())
    return fmt::format("pack w={} x={} n={} k={}{}", p->w.name(), p->x.name(), p->n, p->k,
                       p->inverse ? " inverse=1" : "");
  const Cast* c = cast();
  std::string s = fmt::format("cast x={} y={} rows={} cols={}", c->x.name(), c->y.name(), c->rows, c->cols);
  if (c->encoder) s += fmt::format(" encoder={}", c->y.info().encoders[static_cast<std::size_t>(c->encoder)]);
  return s;
}

std::string_view Problem::op() const { return gemm() ? "gemm" : cast() ? "cast" : "pack"; }
std::int64_t Problem::rows() const { return gemm() ? gemm()->m : cast() ? cast()->rows : pack()->n; }
std::int64_t Problem::cols() const { return gemm() ? gemm()->n : cast() ? cast()->cols : pack()->k; }

Problem Problem::with_rows(std::int64_t rows) const {
  if (const Gemm* g = gemm()) {
    Gemm copy = *g;
    copy.m = rows;
    return Problem(copy);
  }
  if (pack()) return *this;
  Cast copy = *cast();
  copy.rows = rows;
  return Problem(copy);
}

double Problem::min_bytes() const {
  if (const Gemm* g = gemm())
    return static_cast<double>(g->x_stored().total_bytes(g->m, g->k)) + static_cast<double>(w_bytes(*g)) +
           static_cast<double>(g->y.total_bytes(g->m, g->n)) +
           (g->c ? static_cast<double>(g->c->total_bytes(g->m, g->n)) : 0.0);
  if (const Pack* p = pack())
    return static_cast<double>(p->w.total_bytes(p->n, p->k)) + static_cast<double>(w_bytes(packed_gemm(*p)));
  const Cast* c = cast();
  return static_cast<double>(c->x.total_bytes(c->rows, c->cols)) +
         static_cast<double>(c->y.total_bytes(c->rows, c->cols));
}

double Problem::ops() const {
  const Gemm* g = gemm();
  return g ? 2.0 * static_cast<double>(g->m) * static_cast<double>(g->n) * static_cast<double>(g->k) : 0.0;
}

}  // namespace tilewright
