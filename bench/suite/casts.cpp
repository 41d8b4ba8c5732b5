// SPDX-License-Identifier: Apache-2.0
// Casts to and from every format against the host's encoders, bit for bit.
#include <fmt/format.h>

#include <algorithm>

#include "bench/suite/matrix.h"
#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

std::string cast_against_host(Suite& s, const std::string& text, const Kernel& kernel) {
  const Problem problem = Problem::parse(text);
  const Cast& c = *problem.as<Cast>();
  Matrix x = make(s.device(), c.x, c.rows, c.cols, 7, 3.0f);
  std::vector<std::vector<std::byte>> expected;
  for (std::size_t i = 0; i < c.y.info().streams.size(); ++i)
    expected.emplace_back(static_cast<std::size_t>(c.y.stream_bytes(static_cast<int>(i), c.rows, c.cols)));
  const Operand host = operand_over(c.y, [&](int i) { return expected[static_cast<std::size_t>(i)].data(); });
  if (host.global) *const_cast<float*>(host.global) = 0.01f;
  c.y.info().encode(x.decoded.data(), c.rows, c.cols,
                    {const_cast<void*>(host.data), const_cast<void*>(host.scales), const_cast<float*>(host.global)},
                    c.encoder);
  std::vector<Memory> out;
  for (const auto& e : expected) {
    out.emplace_back(s.device(), e.size() + 64);
    out.back().fill(0xa5);
  }
  const Operand y = operand_over(c.y, [&](int i) { return out[static_cast<std::size_t>(i)].data(); });
  if (y.global) {
    const float g = 0.01f;
    for (std::size_t i = 0; i < out.size(); ++i)
      if (out[i].data() == y.global) out[i].upload({reinterpret_cast<const std::byte*>(&g), 4});
  }
  CastArgs args;
  args.x = x.operand, args.y = {const_cast<void*>(y.data), const_cast<void*>(y.scales), const_cast<float*>(y.global)},
  args.rows = c.rows;
  OwnedStream stream(s.device());
  kernel.launch(stream.get(), args);
  stream.synchronize();
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::vector<std::byte> got(expected[i].size() + 64);
    out[i].download(got);
    for (std::size_t b = 0; b < got.size(); ++b) {
      const std::byte want = b < expected[i].size() ? expected[i][b] : std::byte{0xa5};
      if (got[b] != want)
        return fmt::format("{} byte {} is {:02x}, expected {:02x}", name_of(c.y.info().streams[i].stream), b,
                           static_cast<int>(got[b]), static_cast<int>(want));
    }
  }
  return {};
}

// Weights whose rows share scales are encoded by the host alone.
bool rows_apart(Format f) {
  return std::all_of(f.info().streams.begin(), f.info().streams.end(), [](const StreamSpec& s) { return s.rows == 1; });
}

void one_cast_of_each(Suite& s) {
  for (const char* text :
       {"cast x=f32 y=q8_1 rows=5 cols=352", "cast x=bf16 y=q4_k rows=3 cols=768", "cast x=f16 y=nvfp4 rows=5 cols=112",
        "cast x=f32 y=e4m3_row rows=5 cols=259", "cast x=q4_0 y=f16 rows=7 cols=352"})
    s.check(text, [&] { return cast_against_host(s, text, s.engine().prepare(Problem::parse(text), s.device())); });
}

}  // namespace

void cast_checks(Suite& s) {
  if (s.extent() == Extent::one) return one_cast_of_each(s);
  // Compiled ahead of their turn: they are many.
  std::vector<std::pair<std::string, std::future<Kernel>>> casts;
  Ahead ahead(jobs_of(s));
  const auto add = [&](const std::string& text) {
    casts.emplace_back(text, ahead.submit([&s, text] { return s.engine().prepare(Problem::parse(text), s.device()); }));
  };
  for (Format a : Format::all())
    for (const char* plain : {"f32", "f16", "bf16"})
      for (const auto& [rows, blocks] : std::vector<std::pair<int, int>>{{1, 1}, {3, 7}, {130, 33}}) {
        const int cols = a.block() == 1 ? blocks * 37 : a.block() * blocks;
        for (int encoder = 0; rows_apart(a) && encoder < static_cast<int>(a.info().encoders.size()); ++encoder) {
          const std::string to = fmt::format(
              "cast x={} y={} rows={} cols={}{}", plain, a.name(), rows, cols,
              encoder ? fmt::format(" encoder={}", a.info().encoders[static_cast<std::size_t>(encoder)]) : "");
          add(to);
        }
        if (a.name() == plain) continue;
        add(fmt::format("cast x={} y={} rows={} cols={}", a.name(), plain, rows, cols));
      }
  for (auto& [text, kernel] : casts) s.check(text, [&] { return cast_against_host(s, text, kernel.get()); });
  // Against the reference kernel and, by check_on_host(), the host.
  for (const char* y :
       {"e4m3_row", "int8_row", "int4_g32", "nvfp4", "mxfp8", "mxfp4", "e4m3", "e5m2_tensor", "int4_row"}) {
    const std::string text = fmt::format("cast x=bf16 y={} rows=65 cols=2304 rounding=stochastic", y);
    s.check("candidates of " + text, [&] { return candidates_verify(s.engine(), s.device(), text, 24); });
    s.check(text, [&] {
      const Problem problem = Problem::parse(text);
      Task task;
      problem.operation().describe(problem, task);
      std::vector<std::vector<std::byte>> bytes;
      for (const Buffer& b : task.buffers)
        if (bytes.emplace_back(b.bytes); b.fill) b.fill(bytes.back(), 7);
      return judged_on_host(s, problem, s.engine().prepare(problem, s.device()), std::move(bytes));
    });
  }
  for (const char* y : {"q8_1", "q4_0", "q4_k", "nvfp4", "e4m3_row", "e4m3_g128", "bf16"}) {
    const std::string text = fmt::format("cast x=f32 y={} rows=65 cols=2304", y);
    s.check("candidates of " + text,
            [&] { return candidates_verify(s.engine(), s.device(), text, s.extent() == Extent::quick ? 4 : 24); });
  }
}

}  // namespace tilewright::bench
