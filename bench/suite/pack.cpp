// SPDX-License-Identifier: Apache-2.0
// Weights packed to tiles and back, and transposed, byte for byte, and one packed copy under kernels of many m.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "bench/suite/pairs.h"
#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

// Weights to tiles on the device against the host, byte for byte, and back. Every byte is random, so weights of TQ1_0,
// of which some bytes mean the same, come back as the host unpacks them; tests/templates hold that against the weights.
std::string pack_against_host(Suite& s, const Pack& forth) {
  Gemm g{.x = forth.x, .w = forth.w, .y = forth.x, .bias = {}};
  g.n = forth.n, g.k = forth.k, g.packing = Packing::tiles;
  std::mt19937 random(11);
  struct Streams {
    std::vector<std::vector<std::byte>> host;
    std::vector<Memory> device;
    MutableOperand on_host, on_device;
  } w, tiles, back;
  Gemm stored = g;
  stored.packing = Packing::none;
  const auto place = [&](Streams& to, const Gemm& of, bool fill) {
    to.host.reserve(3), to.device.reserve(3);
    for (const StreamName stream : kStreams) {
      const auto bytes = static_cast<std::size_t>(packed_bytes(of, stream));
      if (bytes == 0) continue;
      to.host.emplace_back(bytes);
      if (fill)
        std::generate(to.host.back().begin(), to.host.back().end(),
                      [&] { return static_cast<std::byte>(random() >> 8); });
      to.device.emplace_back(s.device(), bytes + 64);
      to.device.back().fill(0xa5);
      if (fill) to.device.back().upload(to.host.back());
      to.on_host.set(stream, to.host.back().data()), to.on_device.set(stream, to.device.back().data());
    }
  };
  place(w, stored, true), place(tiles, g, false), place(back, stored, false);
  const auto differs = [](const Streams& expected, const Streams& got, const char* what) -> std::string {
    for (std::size_t i = 0; i < expected.host.size(); ++i) {
      std::vector<std::byte> bytes(expected.host[i].size() + 64);
      got.device[i].download(bytes);
      for (std::size_t b = 0; b < bytes.size(); ++b) {
        const std::byte want = b < expected.host[i].size() ? expected.host[i][b] : std::byte{0xa5};
        if (bytes[b] != want)
          return fmt::format("{} stream {} byte {} of {} is {:02x}, expected {:02x}", what, i, b,
                             expected.host[i].size(), static_cast<int>(bytes[b]), static_cast<int>(want));
      }
    }
    return {};
  };
  pack_weights(g, w.on_host, tiles.on_host);
  unpack_weights(g, tiles.on_host, back.on_host);
  OwnedStream stream(s.device());
  s.engine().prepare(forth, s.device()).launch(stream.get(), PackArgs{w.on_device, tiles.on_device});
  stream.synchronize();
  if (const std::string why = differs(tiles, tiles, "packed"); !why.empty()) return why;
  Pack inverse = forth;
  inverse.inverse = true;
  s.engine().prepare(inverse, s.device()).launch(stream.get(), PackArgs{back.on_device, tiles.on_device});
  stream.synchronize();
  if (const std::string why = differs(back, back, "unpacked"); !why.empty()) return why;
  return differs(tiles, tiles, "after unpacking, packed");
}

// Random bytes, against the host; nothing behind the result is written.
std::string transpose_against_host(Suite& s, const Problem& problem, const Kernel& kernel) {
  Task task;
  problem.operation().describe(problem, task);
  std::vector<std::vector<std::byte>> bytes;
  for (const Buffer& b : task.buffers) bytes.emplace_back(b.bytes);
  std::mt19937 random(13);
  std::generate(bytes[0].begin(), bytes[0].end(), [&] { return static_cast<std::byte>(random() >> 8); });
  std::vector<std::span<std::byte>> buffers(bytes.begin(), bytes.end());
  problem.operation().run_on_host(problem, task, buffers);
  constexpr std::size_t kBehind = 64;
  bytes[1].resize(bytes[1].size() + kBehind, std::byte{0xa5});
  OwnedStream stream(s.device());
  Memory x(s.device(), bytes[0].size()), y(s.device(), bytes[1].size());
  x.upload(bytes[0]), y.fill(0xa5);
  kernel.launch(stream.get(), TransposeArgs{x.data(), y.data()});
  stream.synchronize();
  std::vector<std::byte> got(bytes[1].size());
  y.download(got);
  const auto at = std::mismatch(got.begin(), got.end(), bytes[1].begin()).first;
  return at == got.end() ? std::string() : fmt::format("byte {} of {} differs", at - got.begin(), got.size() - kBehind);
}

void transpose_checks(Suite& s, Ahead& ahead) {
  std::vector<std::pair<Problem, std::shared_future<Kernel>>> all;
  for (const char* x : {"int8", "bf16", "f32"})
    for (const char* sizes :
         {"rows=1 cols=1", "rows=67 cols=130", "rows=512 cols=4096", "rows=1000 cols=777", "rows=4100 cols=36"}) {
      if (s.extent() == Extent::one && std::string_view(sizes) != "rows=67 cols=130") continue;
      const Problem problem = Problem::parse(fmt::format("transpose x={} {}", x, sizes));
      all.emplace_back(problem, ahead.submit([&s, problem] { return s.engine().prepare(problem, s.device()); }));
    }
  for (const auto& [problem, kernel] : all)
    s.check(problem.text(),
            [&, &problem = problem, &kernel = kernel] { return transpose_against_host(s, problem, kernel.get()); });
  if (s.extent() == Extent::one) return;
  for (const char* text : {"transpose x=int8 rows=1000 cols=1028", "transpose x=f16 rows=501 cols=77"})
    s.check("candidates of " + std::string(text), [&] { return candidates_verify(s.engine(), s.device(), text, 24); });
}

}  // namespace

void pack_checks(Suite& s) {
  Ahead ahead(jobs_of(s));
  transpose_checks(s, ahead);
  struct Item {
    Pack pack;
    std::vector<std::future<Kernel>> kernels;
  };
  std::vector<Item> items;
  std::set<std::string> met;
  // Asked of the problem itself: packing needs no warpgroup instructions.
  for (Format x : Format::all())
    for (Format w : Format::all()) {
      std::int64_t step = std::lcm<std::int64_t>(w.block(), 128 / std::max(1, x.info().streams[0].bytes / x.block()));
      Pack pack{w, x, 192, 3 * step};
      try {
        const Problem problem(pack);
      } catch (const Error&) {
        continue;  // no tiles for this x
      }
      if (s.extent() == Extent::one && !met.insert(std::string(x.name())).second) continue;
      for (const auto& [n, k] :
           std::vector<std::pair<std::int64_t, std::int64_t>>{{192, 3 * step}, {64, 5 * 2048 / step * step}}) {
        pack.n = n, pack.k = k;
        Item item{pack, {}};
        for (bool inverse : {false, true}) {
          Pack one = pack;
          one.inverse = inverse;
          item.kernels.push_back(ahead.submit([&s, one] { return s.engine().prepare(one, s.device()); }));
        }
        items.push_back(std::move(item));
      }
    }
  for (Item& item : items)
    s.check(fmt::format("{} and back", Problem(item.pack).text()), [&] {
      for (auto& kernel : item.kernels) kernel.wait();
      return pack_against_host(s, item.pack);
    });
}

// One packed copy, made on the device, under one prepared kernel at many m; the oracle of the packed problem against
// that of the same weights as stored.
void served_checks(Suite& s) {
  if (!s.device().arch().wgmma) return;
  std::vector<Pair> pairs = wgmma_pairs(s);
  std::set<std::string> met;
  std::erase_if(pairs, [&](const Pair& p) {
    const bool first = p.tiles && !p.fast && met.insert(std::string(p.x.name())).second;
    return !first && !(p.tiles && p.x.name() == "f16" && (p.w.name() == "q4_k" || p.w.name() == "nvfp4"));
  });
  Ahead ahead(jobs_of(s));
  struct Item {
    Problem packed, plain;
    std::future<Kernel> kernel, packed_oracle, plain_oracle;
  };
  constexpr std::int64_t kRows = 300;
  std::vector<Item> items;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    Pair stored = pairs[i];
    stored.tiles = false;
    const Problem plain = Problem::parse(stored.text(static_cast<int>(i), 576, kWholeK, true));
    const Problem packed = Problem::parse(pairs[i].text(static_cast<int>(i), 576, kWholeK, true));
    Item item{packed, plain, {}, {}, {}};
    item.kernel = ahead.submit([&s, packed] { return s.engine().prepare(packed, s.device()); });
    item.packed_oracle = ahead.submit(oracle_of(s, s.engine().task(packed.with_rows(kRows), s.device().arch())));
    item.plain_oracle = ahead.submit(oracle_of(s, s.engine().task(plain.with_rows(kRows), s.device().arch())));
    items.push_back(std::move(item));
  }
  for (Item& item : items)
    s.check("one packed copy for every m: " + item.packed.text(), [&]() -> std::string {
      Trial plain(s, item.plain, kRows, item.plain_oracle.get()),
          packed(s, item.packed, kRows, item.packed_oracle.get());
      const Kernel kernel = item.kernel.get();
      plain.fill(5), packed.fill(5);
      plain.upload(), packed.upload();
      const Operand from = plain.arguments(1).w, to = packed.arguments(1).w;
      s.engine().pack(packed.gemm(), s.device(), packed.stream(), from,
                      {const_cast<void*>(to.data), const_cast<void*>(to.scales), const_cast<float*>(to.global)});
      packed.synchronize();
      packed.adopt();
      plain.consult(kRows), packed.consult(kRows);
      for (std::size_t i = 0; i < plain.values().size(); ++i) {
        const float a = plain.values()[i], b = packed.values()[i];
        if (!(std::fabs(a - b) <= 1e-5f * std::fabs(a) + 1e-12f))
          return fmt::format("value {}: {} of the weights as stored, {} of the packed ones", i, a, b);
      }
      for (std::int64_t m : {1, 5, 64, 300, 5})
        if (const std::string why = packed.judge(kernel, m); !why.empty()) return why;
      if (packed.gemm().y == Format::parse("int32")) return packed.unchanged();
      packed.factors(-1.5f, packed.gemm().c ? 0.375f : 1.0f);
      packed.consult(kRows);
      for (std::int64_t m : {1, 64, 300})
        if (const std::string why = packed.judge(kernel, m); !why.empty()) return "factors of the launch: " + why;
      return packed.unchanged();
    });
}

}  // namespace tilewright::bench
