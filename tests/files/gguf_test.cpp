// SPDX-License-Identifier: Apache-2.0
#include <tilewright/gguf.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <tilewright/error.h>
#include <tilewright/format.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "files/gguf_builder.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace tilewright;
using test::GgufBytes;

namespace {

Gguf parse(const std::vector<std::byte>& bytes) { return Gguf(ByteSource::memory(bytes)); }

// The refusal's text; fails the test when there is none.
std::string refusal(const std::vector<std::byte>& bytes) {
  try {
    parse(bytes);
  } catch (const Error& e) {
    CHECK((e.code() == ErrorCode::invalid_argument || e.code() == ErrorCode::too_large));
    CHECK_FALSE(e.field().empty());
    return e.what();
  }
  FAIL("accepted");
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

#define CHECK_REFUSED(builder, part)             \
  do {                                           \
    const std::string text = refusal((builder)); \
    INFO(text);                                  \
    CHECK(contains(text, (part)));               \
  } while (false)

std::vector<std::byte> one(const std::vector<std::uint64_t>& dims, std::uint32_t type, std::uint64_t offset = 0) {
  return GgufBytes().head(1, 0).info("w", dims, type, offset).align().data(64).bytes();
}

long peak_kib() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

}  // namespace

TEST_CASE("gguf: a right file gives infos, bytes and metadata") {
  const auto bytes = test::sample_gguf();
  const Gguf file = parse(bytes);
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.alignment() == 64);
  const GgufTensor& w = file.tensor("w");
  CHECK(w.cols() == 64);
  CHECK(w.rows() == 3);
  CHECK(std::string(w.format) == "q4_0");
  CHECK(w.bytes == 6 * 18);
  CHECK(file.read(w)[17] == std::byte{17});
  CHECK(file.tensor("y").rows() == 8);
  CHECK(std::get<std::string>(*file.value("general.architecture")) == "bert");
  CHECK(std::get<GgufArray>(*file.value("a.strings")).count == 2);
  CHECK(std::get<bool>(*file.value("a.bool")));
  CHECK(std::get<double>(*file.value("a.float")) == 0.5);
  CHECK(file.value("none") == nullptr);
  CHECK_THROWS_AS(file.tensor("none"), Error);
}

TEST_CASE("gguf: the shipped model opens") {
  const Gguf file = Gguf::open(paths::source_dir() + "/examples/models/minilm-l6-v2-tiny.gguf");
  CHECK(file.tensors().size() == 11);
  for (const char* format : {"q4_0", "q8_0", "q4_k"}) {
    const GgufTensor& t = file.tensor(std::string("blk.0.ffn_down.weight.") + format);
    CHECK(std::string(t.format) == format);
    CHECK(t.rows() == 384);
    CHECK(t.cols() == 1536);
    CHECK(file.read(t).size() == t.bytes);
  }
  CHECK(std::get<std::string>(*file.value("general.license")) == "apache-2.0");
}

TEST_CASE("gguf: a part of a tensor, and into the caller's memory") {
  const auto bytes = test::sample_gguf();
  const Gguf file = parse(bytes);
  const GgufTensor& w = file.tensor("w");
  std::vector<std::byte> part(18);
  file.read(w, 18, part);
  CHECK(part[0] == std::byte{18});
  file.read(w, w.bytes, {});
  CHECK_THROWS_AS(file.read(w, w.bytes - 17, part), Error);
  CHECK_THROWS_AS(file.read(w, UINT64_MAX, part), Error);
}

TEST_CASE("gguf: a type that has a format has its bytes") {
  int formats = 0;
  for (std::uint32_t type = 0; type <= 42; ++type) {
    GgufBytes b;
    b.head(1, 0).info("w", {256, 3}, type, 0).align().data(256 * 3 * 8);
    try {
      const GgufTensor t = parse(b.bytes()).tensors()[0];
      if (t.format.empty()) continue;
      ++formats;
      INFO(t.format);
      const Format format = Format::parse(t.format);
      REQUIRE(format.info().streams.size() == 1);
      CHECK(static_cast<std::uint64_t>(format.stream_bytes(0, 3, 256)) == t.bytes);
    } catch (const Error& e) {
      CHECK(contains(e.what(), "removed"));
    }
  }
  CHECK(formats == 31);
}

TEST_CASE("gguf: a FIFO is refused at once, not waited for") {
  const std::string path = paths::binary_dir() + "/gguf-test.fifo";
  ::unlink(path.c_str());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  try {
    Gguf::open(path);
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(contains(e.what(), "regular file"));
  }
  ::unlink(path.c_str());
}

TEST_CASE("gguf: a file that shrinks while it is open is an error") {
  const std::string path = paths::binary_dir() + "/gguf-test.shrinks";
  const auto bytes = test::sample_gguf();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
  const Gguf file = Gguf::open(path);
  CHECK(file.read(file.tensor("y")).size() == 64);
  REQUIRE(::truncate(path.c_str(), static_cast<long>(bytes.size()) - 8) == 0);
  CHECK_THROWS_AS(file.read(file.tensor("y")), Error);
  ::unlink(path.c_str());
}

TEST_CASE("gguf: no such file, a folder, an empty file") {
  CHECK_THROWS_AS(Gguf::open("/nonexistent/model.gguf"), Error);
  CHECK_THROWS_AS(Gguf::open("/"), Error);
  CHECK_REFUSED(std::vector<std::byte>{}, "magic");
}

TEST_CASE("gguf: preamble") {
  CHECK_REFUSED(GgufBytes().put<std::uint32_t>(0x46465547).data(64).bytes(), "magic");
  CHECK_REFUSED(GgufBytes().head(0, 0, 2).bytes(), "version must be 3 (got 2)");
  CHECK_REFUSED(GgufBytes().head(0, 0, 0x03000000).bytes(), "big-endian");
  CHECK_REFUSED(GgufBytes().head(1ull << 62, 0).bytes(), "(got 4611686018427387904)");
  CHECK_REFUSED(GgufBytes().head(0, 1ull << 62).bytes(), "key count");
  CHECK_REFUSED(GgufBytes().head(60000, 0).data(100).bytes(), "tensor count 60000 does not fit");
  CHECK(parse(GgufBytes().head(0, 0).bytes()).tensors().empty());
}

TEST_CASE("gguf: shapes") {
  CHECK_REFUSED(one({4194305, 4194305, 211106198978564}, 0), "shape");  // the product wraps to a small number
  CHECK_REFUSED(one({1ull << 63, 2}, 0), "shape[0]");
  CHECK_REFUSED(one({1ull << 62, 2}, 0), "shape");
  CHECK_REFUSED(one({1ull << 61}, 0), "bytes");
  CHECK_REFUSED(one({0, 4}, 0), "shape[0] must be 1 to 2^63 - 1 (got 0)");
  CHECK_REFUSED(one({}, 0), "dims must be 1 to 4 (got 0)");
  CHECK_REFUSED(one({1, 1, 1, 1, 1}, 0), "dims must be 1 to 4 (got 5)");
  CHECK_REFUSED(one({33}, 2), "multiple of 32");
  CHECK_REFUSED(one({64}, 0), "ends at");
  GgufBytes dims;
  dims.head(1, 0).string("w").put<std::uint32_t>(UINT32_MAX).data(64);
  CHECK_REFUSED(dims.bytes(), "dims must be 1 to 4 (got 4294967295)");
}

TEST_CASE("gguf: types") {
  for (std::uint32_t type : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u}) CHECK_REFUSED(one({256}, type), "removed");
  CHECK_REFUSED(one({256}, 43), "0 to 42");
  CHECK_REFUSED(one({256}, UINT32_MAX), "0 to 42");
}

TEST_CASE("gguf: offsets") {
  CHECK_REFUSED(one({4}, 0, 1ull << 63), "must be 0");
  CHECK_REFUSED(one({4}, 0, UINT64_MAX - 31), "must be 0");
  CHECK_REFUSED(one({4}, 0, 16), "must be 0");
  CHECK_REFUSED(one({17}, 0), "ends at");
  const auto two = [](std::uint64_t first, std::uint64_t second) {
    return GgufBytes().head(2, 0).info("a", {16}, 0, first).info("b", {4}, 0, second).align().data(128).bytes();
  };
  CHECK_REFUSED(two(0, 32), "tensor 'b' offset must be 64 (got 32)");  // overlaps
  CHECK_REFUSED(two(0, 96), "must be 64");                             // leaves a hole
  CHECK_REFUSED(two(32, 0), "tensor 'a' offset must be 0 (got 32)");   // in another order than the infos
  CHECK_NOTHROW(parse(two(0, 64)));
}

TEST_CASE("gguf: names and keys") {
  CHECK_REFUSED(GgufBytes().head(2, 0).info("a", {4}, 0, 0).info("a", {4}, 0, 32).align().data(96).bytes(), "twice");
  CHECK_REFUSED(GgufBytes().head(0, 2).key_u32("a", 1).key_u32("a", 1).bytes(), "twice");
  CHECK_REFUSED(GgufBytes().head(0, 1).key_u32("", 1).data(9).bytes(), "empty");
  CHECK_REFUSED(GgufBytes().head(1, 0).info("", {4}, 0, 0).align().data(32).bytes(), "empty");
  CHECK_REFUSED(GgufBytes().head(1, 0).info(std::string(65, 'x'), {4}, 0, 0).align().data(32).bytes(), "(got 65)");
  CHECK_REFUSED(GgufBytes().head(1, 0).put<std::uint64_t>(1ull << 63).data(64).bytes(), "(got 9223372036854775808)");
  CHECK_REFUSED(GgufBytes().head(0, 1).string("k").put<std::uint32_t>(8).put<std::uint64_t>(1ull << 63).bytes(),
                "(got 9223372036854775808)");
  CHECK_REFUSED(GgufBytes().head(0, 1).string("k").put<std::uint32_t>(8).put<std::uint64_t>(1ull << 29).bytes(),
                "follow");
  CHECK_REFUSED(GgufBytes().head(0, 1).string("k").put<std::uint32_t>(13).data(16).bytes(),
                "type must be 0 to 12 (got 13)");
  CHECK_REFUSED(GgufBytes().head(0, 1).string("k").put<std::uint32_t>(7).put<std::uint8_t>(2).bytes(), "bool");
}

TEST_CASE("gguf: arrays") {
  const auto array = [](std::uint32_t type, std::uint64_t count) {
    return GgufBytes().head(0, 1).string("k").put<std::uint32_t>(9).put(type).put(count).data(64).bytes();
  };
  CHECK_REFUSED(array(0, (1ull << 30) + 1), "at most 2^30");
  CHECK_REFUSED(array(12, 1ull << 30), "follow");
  CHECK_REFUSED(array(8, 1ull << 61), "at most 2^30");
  CHECK_REFUSED(array(8, 9), "follow");
  CHECK_REFUSED(array(9, 1), "not an array again");
  CHECK_REFUSED(array(77, 1), "element type");
}

TEST_CASE("gguf: alignment") {
  for (std::uint32_t a : {0u, 3u, 24u, 0x80000000u})
    CHECK_REFUSED(GgufBytes().head(0, 1).key_u32("general.alignment", a).bytes(), "general.alignment");
  CHECK_REFUSED(GgufBytes().head(0, 1).key_string("general.alignment", "32").bytes(), "general.alignment");
  CHECK_NOTHROW(parse(GgufBytes().head(0, 1).key_u32("general.alignment", 8).bytes()));
}

TEST_CASE("gguf: every prefix of a right file is refused or whole") {
  const auto bytes = test::sample_gguf();
  for (std::size_t n = 0; n < bytes.size(); ++n)
    CHECK_THROWS_AS(parse(std::vector<std::byte>(bytes.begin(), bytes.begin() + static_cast<long>(n))), Error);
}

TEST_CASE("gguf: damaged files are refused or read in bounds") {
  const auto seed = test::sample_gguf();
  const std::uint64_t interesting[] = {0,
                                       1,
                                       3,
                                       31,
                                       32,
                                       255,
                                       65535,
                                       1u << 30,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       1ull << 32,
                                       1ull << 61,
                                       1ull << 62,
                                       1ull << 63,
                                       UINT64_MAX,
                                       UINT64_MAX - 31,
                                       4194305,
                                       211106198978564};
  std::mt19937_64 random(40);
  const long before = peak_kib();
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    auto bytes = seed;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0 && !bytes.empty(); --edits) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] = static_cast<std::byte>(random()); break;
        case 1: bytes[at] ^= static_cast<std::byte>(1u << random() % 8); break;
        case 2: {
          const std::uint64_t value = interesting[random() % std::size(interesting)];
          std::memcpy(&bytes[at], &value, std::min<std::size_t>(random() % 2 ? 8 : 4, bytes.size() - at));
          break;
        }
        default: random() % 8 ? (void)0 : bytes.resize(at);
      }
    }
    try {
      const Gguf file = parse(bytes);
      for (const GgufTensor& t : file.tensors()) REQUIRE(file.read(t).size() == t.bytes);
      ++accepted;
    } catch (const Error& e) {
      REQUIRE(e.code() != ErrorCode::io);  // every bound is checked before reading
    }
  }
  CHECK(accepted > 100);
  CHECK(accepted < 20000);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // both keep freed memory on purpose
  CHECK(peak_kib() - before < 64 << 10);
#else
  (void)before;
#endif
}
