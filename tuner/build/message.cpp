// SPDX-License-Identifier: Apache-2.0
// The bodies of the messages between a Worker and its process.
#include <cstdlib>
#include <cstring>

#include <tilewright/error.h>

#include "tuner/build/worker.h"

namespace tilewright::tuner {
namespace {

class Writer {
 public:
  explicit Writer(const char* magic) : out_(magic) {}
  void number(std::uint32_t v) {
    for (int i = 0; i < 4; ++i) out_ += static_cast<char>(v >> (8 * i));
  }
  void number64(std::uint64_t v) {
    number(static_cast<std::uint32_t>(v));
    number(static_cast<std::uint32_t>(v >> 32));
  }
  void text(std::string_view s) {
    number(static_cast<std::uint32_t>(s.size()));
    out_ += s;
  }
  void axis(const GridAxis& a) {
    number(a.fixed);
    number(a.per_rows);
    number(a.per_cols);
  }
  void map(const TensorMapPlan& m) {
    number(m.pointer);
    number64(m.behind);
    number(m.rows_at);
    number64(m.rows);
    number(m.stride_at);
    number(m.inner_at);
    number64(m.inner);
    for (std::uint32_t v : {m.block, m.block_elements, m.element_bytes, m.box_inner, m.box_rows, m.box_panels,
                            m.swizzle, m.tile_boxes, m.axes, m.axes_at})
      number(v);
    for (std::uint32_t v : m.box_axes) number(v);
    for (std::uint32_t v : m.steps) number(v);
  }
  void plan(const LaunchPlan& p) {
    axis(p.x);
    axis(p.y);
    axis(p.z);
    number(p.threads);
    number(p.cluster);
    number(p.shared_bytes);
    number(p.persistent);
    number(p.overlap);
    number(p.most_rows);
    number(p.map_count);
    for (const TensorMapPlan& m : p.maps) map(m);
    number(p.cpu.has_value());
    if (p.cpu) {
      for (const GridAxis& a : {p.cpu->blocks, p.cpu->first_blocks, p.cpu->scratch}) axis(a);
      number(p.cpu->parts);
      number(p.cpu->needs_amx);
    }
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// After the first thing that does not fit, ok() is false and everything read is empty.
class Reader {
 public:
  Reader(const std::string& body, const char* magic) : rest_(body) {
    ok_ = rest_.substr(0, 4) == magic;
    if (ok_) rest_.remove_prefix(4);
  }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }
  std::uint32_t number() {
    if (!ok_ || rest_.size() < 4) return fail();
    std::uint32_t v = 0;
    for (int i = 0; i < 4; ++i) v |= static_cast<std::uint32_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    rest_.remove_prefix(4);
    return v;
  }
  std::uint64_t number64() {
    std::uint64_t low = number();
    return low | std::uint64_t{number()} << 32;
  }
  std::string_view text() {
    std::uint32_t n = number();
    if (!ok_ || n > rest_.size()) {
      fail();
      return {};
    }
    std::string_view s = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return s;
  }
  GridAxis axis() {
    GridAxis a;
    a.fixed = number();
    a.per_rows = number();
    a.per_cols = number();
    return a;
  }
  TensorMapPlan map() {
    TensorMapPlan m;
    m.pointer = number();
    m.behind = number64();
    m.rows_at = number();
    m.rows = number64();
    m.stride_at = number();
    m.inner_at = number();
    m.inner = number64();
    for (std::uint32_t* v : {&m.block, &m.block_elements, &m.element_bytes, &m.box_inner, &m.box_rows, &m.box_panels,
                             &m.swizzle, &m.tile_boxes, &m.axes, &m.axes_at})
      *v = number();
    for (std::uint32_t& v : m.box_axes) v = number();
    for (std::uint32_t& v : m.steps) v = number();
    return m;
  }
  LaunchPlan plan() {
    LaunchPlan p;
    p.x = axis();
    p.y = axis();
    p.z = axis();
    p.threads = number();
    p.cluster = number();
    p.shared_bytes = number();
    p.persistent = number();
    p.overlap = number() != 0;
    p.most_rows = number();
    p.map_count = number();
    for (TensorMapPlan& m : p.maps) m = map();
    if (number() != 0) {
      CpuLaunch& cpu = p.cpu.emplace();
      for (GridAxis* a : {&cpu.blocks, &cpu.first_blocks, &cpu.scratch}) *a = axis();
      cpu.parts = number();
      cpu.needs_amx = number() != 0;
    }
    return p;
  }

 private:
  std::uint32_t fail() {
    ok_ = false;
    rest_ = {};
    return 0;
  }
  std::string_view rest_;
  bool ok_ = false;
};

double number_of(std::string_view s) { return std::strtod(std::string(s).c_str(), nullptr); }

}  // namespace

std::string encode_request(const Source& source, const Arch& arch, const CompileOptions& options) {
  Writer w("TWQ4");
  w.text(arch.name);
  w.text(options.nvrtc);
  w.number(options.compiler_cache);
  w.text(source.name);
  w.text(source.entry);
  w.text(source.text);
  w.plan(source.plan);
  w.number(static_cast<std::uint32_t>(source.options.size()));
  for (const std::string& o : source.options) w.text(o);
  w.number(static_cast<std::uint32_t>(source.headers.size()));
  for (const Header& h : source.headers) {
    w.text(h.name);
    w.text(h.text);
  }
  return w.take();
}

std::optional<Request> decode_request(const std::string& body) {
  Reader r(body, "TWQ4");
  Request q;
  q.target = r.text();
  q.options.nvrtc = r.text();
  q.options.compiler_cache = r.number() != 0;
  q.source.name = r.text();
  q.source.entry = r.text();
  q.source.text = r.text();
  q.source.plan = r.plan();
  // Counts are not trusted: the loops end with the message.
  for (std::uint32_t n = r.number(); n > 0 && r.ok(); --n) q.source.options.emplace_back(r.text());
  for (std::uint32_t n = r.number(); n > 0 && r.ok(); --n) {
    Header h;
    h.name = r.text();
    h.text = std::string(r.text());
    q.source.headers.push_back(std::move(h));
  }
  if (!r.done()) return std::nullopt;
  return q;
}

std::string encode_reply(const Binary& b) {
  Writer w("TWA1");
  w.number(1);
  w.text(b.target);
  w.text(b.entry);
  w.plan(b.plan);
  w.number(static_cast<std::uint32_t>(b.resources.registers));
  w.number(static_cast<std::uint32_t>(b.resources.shared_bytes));
  w.number(static_cast<std::uint32_t>(b.resources.spill_bytes));
  w.number(static_cast<std::uint32_t>(b.resources.stack_bytes));
  w.number(b.resources.serialized);
  w.text({reinterpret_cast<const char*>(b.image.data()), b.image.size()});
  w.text(b.log);
  w.text(std::to_string(b.seconds));
  return w.take();
}

std::string encode_reply(const std::exception& error) {
  Writer w("TWA1");
  auto* compile = dynamic_cast<const CompileError*>(&error);
  auto* known = dynamic_cast<const Error*>(&error);
  w.number(0);
  w.number(compile ? 1 : 0);
  w.number(known ? static_cast<std::uint32_t>(known->code()) : static_cast<std::uint32_t>(ErrorCode::compile_failed));
  w.text(known ? known->field() : "compile worker");
  w.text(known ? known->value() : "");
  w.text(compile ? compile->log() : known ? known->allowed() : std::string("failed: ") + error.what());
  w.text(compile ? compile->options() : "");
  return w.take();
}

Binary decode_reply(const std::string& body, const Source& source, const Arch& arch) {
  Reader r(body, "TWA1");
  const Malformed nonsense(ErrorCode::compile_failed, "compile worker", source.name + " for " + arch.name,
                           "answered nonsense");
  if (r.number() == 1) {
    Binary b;
    b.target = r.text();
    b.entry = r.text();
    b.plan = r.plan();
    b.resources.registers = static_cast<int>(r.number());
    b.resources.shared_bytes = static_cast<int>(r.number());
    b.resources.spill_bytes = static_cast<int>(r.number());
    b.resources.stack_bytes = static_cast<int>(r.number());
    b.resources.serialized = r.number() != 0;
    std::string_view image = r.text();
    b.image.resize(image.size());
    if (!image.empty()) std::memcpy(b.image.data(), image.data(), image.size());
    b.log = r.text();
    b.seconds = number_of(r.text());
    // A reply to another request would be stored under this one's key.
    if (!r.done() || b.target != arch.name || b.entry != source.entry || b.plan != source.plan) throw nonsense;
    return b;
  }
  bool is_compile = r.number() == 1;
  std::uint32_t code = r.number();
  std::string field(r.text()), value(r.text()), text(r.text()), options(r.text());
  if (!r.done() || code > static_cast<std::uint32_t>(ErrorCode::io)) throw nonsense;
  if (is_compile) throw CompileError(source.name, value, options, source.text, text);
  throw Error(static_cast<ErrorCode>(code), field, value, text);
}

}  // namespace tilewright::tuner
