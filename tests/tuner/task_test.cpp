// SPDX-License-Identifier: Apache-2.0
// Tasks made from problems: valid content in every format, the right sizes, and a judge that lets nothing pass.
#include <cmath>
#include <limits>
#include <map>

#include <tilewright/pack.h>

#include "templates/common/fill.h"
#include "tuner/task.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::tuner;
using test::mentions;

namespace {

Task task_of(const char* text) {
  Engine engine(test::options(""));
  return engine.task(Problem::parse(text), arch("sm_90a"));
}

std::span<const std::byte> bytes(const std::vector<float>& v) { return std::as_bytes(std::span(v)); }

}  // namespace

TEST_CASE("content decodes to finite, varied values in every format, the same for every stream", "[task]") {
  for (Format f : Format::all()) {
    INFO(f.name());
    Content c{f, 40, std::int64_t(f.block()) * 8, 0.5f, false};
    std::vector<std::vector<std::byte>> streams;
    MutableOperand to;
    for (int i = 0; i < static_cast<int>(f.info().streams.size()); ++i) {
      streams.emplace_back(static_cast<std::size_t>(f.stream_bytes(i, c.rows, c.cols)));
      fill_stream(c, i, 7, streams.back());
      to.set(f.info().streams[i].stream, streams.back().data());
    }
    std::vector<float> v(static_cast<std::size_t>(c.rows * c.cols));
    f.info().decode(to, c.rows, c.cols, v.data());
    double square = 0;
    for (float x : v) {
      REQUIRE(std::isfinite(x));
      REQUIRE(std::fabs(x) <= 4.6f);
      square += double(x) * x;
    }
    CHECK(std::sqrt(square / v.size()) > 0.1);
    CHECK(std::sqrt(square / v.size()) < 1.5);
    std::vector<std::byte> again(streams[0].size()), other(streams[0].size());
    fill_stream(c, 0, 7, again);
    fill_stream(c, 0, 8, other);
    CHECK(again == streams[0]);
    CHECK(other != streams[0]);
  }
}

TEST_CASE("a large matrix repeats a pool of rows, neighbours differ", "[task]") {
  Content c{Format::parse("f32"), 3000, 1024, 1, false};
  std::vector<float> v(3000 * 1024);
  fill_stream(c, 0, 1, std::as_writable_bytes(std::span(v)));
  for (int r = 1; r < 3000; ++r) REQUIRE(std::memcmp(&v[r * 1024], &v[(r - 1) * 1024], 4096) != 0);
  std::vector<float> part(10 * 1024);  // what a launch over fewer rows sees
  fill_stream(c, 0, 1, std::as_writable_bytes(std::span(part)));
  CHECK(std::memcmp(part.data(), v.data(), part.size() * 4) == 0);
}

TEST_CASE("rows that share scales are repeated together", "[task]") {
  const Content c{Format::parse("e4m3_b128"), 1000, 4096, 1, false};  // eight bands of rows out of a pool of three
  std::vector<unsigned char> data(static_cast<std::size_t>(c.format.stream_bytes(0, c.rows, c.cols)));
  std::vector<float> scales(static_cast<std::size_t>(c.format.stream_bytes(1, c.rows, c.cols)) / 4), v(data.size());
  CHECK(scales.size() == 8 * 32);
  fill_stream(c, 0, 3, std::as_writable_bytes(std::span(data)));
  fill_stream(c, 1, 3, std::as_writable_bytes(std::span(scales)));
  for (float s : scales) CHECK((s > 1e-3f && s < 0.1f));  // the last band's are whole too
  for (std::size_t b = 1; b < 8; ++b) CHECK(!std::equal(&scales[32 * b], &scales[32 * b] + 32, &scales[32 * (b - 1)]));
  c.format.info().decode({data.data(), scales.data(), nullptr}, c.rows, c.cols, v.data());
  for (std::size_t block = 0; block < 32; ++block) {  // each band's largest code is 448, so its scales are its own
    float largest = 0;
    for (std::size_t r = 0; r < 128; ++r)
      for (std::size_t i = 0; i < 128; ++i)
        largest = std::max(largest, std::fabs(v[(r + 128) * 4096 + block * 128 + i]));
    CHECK(largest == Approx(448 * scales[32 + block]));
  }
}

TEST_CASE("packed weights are the same matrix in every stream, whatever their number of rows", "[task]") {
  for (const char* text : {"gemm x=f16 w=q4_0 y=f16 m=4 n=192 k=256 pack=tiles",
                           "gemm x=f16 w=nvfp4 y=f16 m=4 n=12800 k=512 global=div pack=tiles"}) {
    Task t = task_of(text);
    const Gemm g = *Problem::parse(text).as<Gemm>();
    std::map<std::string, std::vector<std::byte>> streams, again;
    for (const Buffer& b : t.buffers)
      if (b.name.starts_with("w.")) {
        const auto named = [&](StreamName s) { return b.name.substr(2) == name_of(s); };
        CHECK(b.bytes == static_cast<std::size_t>(packed_bytes(g, *std::find_if(kStreams, kStreams + 3, named))));
        CHECK(b.row_bytes == 0);
        CHECK_FALSE(b.output);
        b.fill(streams.emplace(b.name, std::vector<std::byte>(b.bytes)).first->second, 7);
        b.fill(again.emplace(b.name, std::vector<std::byte>(b.bytes)).first->second, 7);
      }
    CHECK(streams == again);
    CHECK(streams.count("w.scales") == 1);
    CHECK(t.contract.pointers[1].name == std::string("w.data (tiles)"));
    // Unpacked, it is as large as weights of a layer are, row by row, and no strip equals its neighbour.
    std::vector<std::byte> data(static_cast<std::size_t>(g.w.stream_bytes(0, g.n, g.k))), scales(data.size());
    MutableOperand plain{data.data(), scales.data(), nullptr};
    unpack_weights(g, {streams["w.data"].data(), streams["w.scales"].data(), nullptr}, plain);
    float global = 1;
    if (streams.count("w.global")) std::memcpy(&global, streams["w.global"].data(), 4), global = 1 / global;
    plain.global = &global;
    std::vector<float> w(static_cast<std::size_t>(g.n * g.k));
    g.w.info().decode(plain, g.n, g.k, w.data());
    for (std::int64_t n = 0; n < g.n; ++n) {
      double squares = 0;
      for (std::int64_t k = 0; k < g.k; ++k) squares += std::pow(w[static_cast<std::size_t>(n * g.k + k)], 2);
      CHECK((squares > 0.02 && squares < 20));
    }
    const std::size_t strip = streams["w.data"].size() / static_cast<std::size_t>(g.n / 64);
    for (std::size_t at = strip; at < streams["w.data"].size(); at += strip)
      CHECK(std::memcmp(&streams["w.data"][at], &streams["w.data"][at - strip], strip) != 0);
  }
}

TEST_CASE("a gemm's buffers, arguments and sizes", "[task]") {
  Task t = task_of("gemm x=q8_1 w=nvfp4 y=f16 m=3 n=48 k=64 global=mul bias=f32");
  CHECK(t.rows == 4);  // the bucket
  CHECK(t.key == "gemm x=q8_1 w=nvfp4 y=f16 m=4 n=48 k=64 global=mul bias=f32");
  std::vector<std::string> names;
  for (const Buffer& b : t.buffers) names.push_back(b.name);
  CHECK(names == std::vector<std::string>{"x.data", "w.data", "w.scales", "w.global", "bias.data", "y.data"});
  CHECK(t.buffers[0].row_bytes == 72);
  CHECK(t.buffers[1].row_bytes == 0);
  CHECK(t.buffers[5].bytes == 4 * 48 * 2);
  CHECK(t.buffers[5].output);
  CHECK(t.oracle_scale == 4);
  int dummy[6];
  void* p[6];
  for (int i = 0; i < 6; ++i) p[i] = &dummy[i];
  std::vector<std::byte> raw = t.arguments(p, 3);
  GemmArgs args;
  REQUIRE(raw.size() == sizeof args);
  std::memcpy(&args, raw.data(), sizeof args);
  CHECK(args.x.data == p[0]);
  CHECK(args.x.scales == nullptr);
  CHECK(args.w.scales == p[2]);
  CHECK(args.w.global == p[3]);
  CHECK(args.bias == p[4]);
  CHECK(args.y == p[5]);
  CHECK(args.m == 3);
}

TEST_CASE("x that comes as floats is filled as such, whole blocks of what it becomes", "[task]") {
  Task t = task_of("gemm x=q8_1 w=q4_0 y=f32 m=3 n=48 k=64 x_from=bf16");
  CHECK(t.key == "gemm x=q8_1 w=q4_0 y=f32 m=4 n=48 k=64 x_from=bf16");
  const Buffer& x = t.buffers.front();
  CHECK(x.name == "x.data");
  CHECK(x.row_bytes == 128);
  std::vector<std::byte> bytes(4 * x.row_bytes);
  x.fill(bytes, 1);
  std::vector<float> values(4 * 64);
  Format::parse("bf16").info().decode({bytes.data(), nullptr, nullptr}, 4, 64, values.data());
  float largest = 0;
  for (float v : values) largest = std::max(largest, std::fabs(v));
  CHECK(largest > 1);  // near one, as other x is
  CHECK(largest < 8);
}

TEST_CASE("a workspace is scratch, neither filled nor compared", "[task]") {
  Task t = task_of("gemm x=f16 w=f16 y=f16 m=3 n=48 k=64 workspace=65536");
  const Buffer& b = t.buffers.back();
  CHECK(b.name == "workspace");
  CHECK(b.bytes == 65536);
  CHECK(b.scratch);
  CHECK_FALSE(b.output);
  CHECK_FALSE(b.fill);
  std::vector<std::byte> place(t.buffers.size());
  std::vector<void*> p;
  for (std::byte& at : place) p.push_back(&at);
  GemmArgs args;
  const std::vector<std::byte> raw = t.arguments(p, 3);
  REQUIRE(raw.size() == sizeof args);
  std::memcpy(&args, raw.data(), sizeof args);
  CHECK(args.workspace == p.back());
  for (const Buffer& other : task_of("gemm x=f16 w=f16 y=f16 m=3 n=48 k=64").buffers) CHECK_FALSE(other.scratch);
}

TEST_CASE("how many rows are verified", "[task]") {
  auto rows = [](const char* text) { return task_of(text).verify_rows; };
  CHECK(rows("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64") == 1);
  CHECK(rows("gemm x=f16 w=f16 y=f16 m=16 n=64 k=64") == 16);
  CHECK(rows("gemm x=f16 w=f16 y=f16 m=100 n=64 k=64") == 65);
  CHECK(rows("gemm x=f16 w=f16 y=f16 m=4096 n=4096 k=14336") == 257);
  CHECK(rows("gemm x=f16 w=f16 y=f16 m=4096 n=57344 k=8192") == 129);
}

TEST_CASE("the judge of a gemm", "[task]") {
  Task t = task_of("gemm x=f32 w=f32 y=f32 m=1 n=4 k=8");
  float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  auto judge = [&](std::vector<float> got, std::vector<float> oracle) {
    return t.compare(bytes(got), bytes(oracle), {}, 1);
  };
  CHECK(judge({1, 2, 3, 4}, {1, 2, 3, 4, 0, 0, 0, 0}).empty());
  CHECK(judge({1, 2, 3.1f, 4}, {1, 2, 3, 4, 0, 0, 0.2f, 0}).empty());
  CHECK(t.worst_error() == Approx(0.5).epsilon(1e-3));
  CHECK(mentions(judge({1, 2, 3.3f, 4}, {1, 2, 3, 4, 0, 0, 0.2f, 0}), "y[0,2]"));
  CHECK_FALSE(judge({1, 2, nan, 4}, {1, 2, 3, 4, 9, 9, 9, 9}).empty());
  CHECK_FALSE(judge({1, 2, 3, 4}, {1, 2, 3, 4, 9, nan, 9, 9}).empty());  // a bound that is NaN permits nothing
  CHECK_FALSE(judge({1, 2, 3, 4}, {1, 2, inf, 4, 9, 9, 9, 9}).empty());
  CHECK(judge({1, 2, inf, nan}, {1, 2, inf, nan, 9, 9, 9, 9}).empty());
  CHECK_FALSE(judge({1, 2, -inf, 4}, {1, 2, inf, 4, 9, 9, 9, 9}).empty());
  CHECK_FALSE(judge({1, 2, 3, 4}, {1, 2}).empty());
}
