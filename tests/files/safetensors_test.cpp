// SPDX-License-Identifier: Apache-2.0
#include <tilewright/safetensors.h>

#include <sys/stat.h>
#include <tilewright/error.h>
#include <tilewright/format.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

#include "support/catch.h"
#include "support/paths.h"

using namespace tilewright;

namespace {

std::vector<std::byte> bytes_of(const std::string& header, std::size_t data, std::uint64_t length) {
  std::vector<std::byte> bytes(sizeof length + header.size() + data);
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, header.data(), header.size());
  for (std::size_t i = 0; i < data; ++i) bytes[sizeof length + header.size() + i] = static_cast<std::byte>(i);
  return bytes;
}
std::vector<std::byte> bytes_of(const std::string& header, std::size_t data = 0) {
  return bytes_of(header, data, header.size());
}

Safetensors parse(const std::vector<std::byte>& bytes) { return Safetensors(ByteSource::memory(bytes)); }

// A header with one entry.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

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

void refused(const std::vector<std::byte>& bytes, const std::string& part) {
  const std::string text = refusal(bytes);
  INFO(text);
  CHECK(text.find(part) != text.npos);
}

// Listed in another order than stored, with metadata, a scalar, and tensors without elements.
const std::string kSample =
    R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,4],"data_offsets":[8,24]},)"
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"s":{"dtype":"I64","shape":[],"data_offsets":[24,32]},)"
    R"("none":{"dtype":"U8","shape":[0,3],"data_offsets":[24,24]}}   )";

}  // namespace

TEST_CASE("safetensors: a right file gives infos, bytes and metadata") {
  const auto bytes = bytes_of(kSample, 32);
  const Safetensors file = parse(bytes);
  REQUIRE(file.tensors().size() == 4);
  const SafetensorsTensor& w = file.tensor("w");
  CHECK(w.rows() == 2);
  CHECK(w.cols() == 4);
  CHECK(w.dtype == "BF16");
  CHECK(w.format == "bf16");
  CHECK(w.bytes == 16);
  CHECK(file.read(w)[0] == std::byte{8});
  CHECK(file.tensors()[0].name == "b");  // by offset
  CHECK(file.tensor("s").rows() * file.tensor("s").cols() == 1);
  CHECK(file.tensor("none").bytes == 0);
  CHECK(file.read(file.tensor("none")).empty());
  CHECK(*file.value("format") == "pt");
  CHECK(file.value("none") == nullptr);
  CHECK(file.find("nothing") == nullptr);
  CHECK_THROWS_AS(file.tensor("nothing"), Error);
  std::vector<std::byte> part(4);
  file.read(w, 12, part);
  CHECK(part[3] == std::byte{23});
  CHECK_THROWS_AS(file.read(w, 13, part), Error);
  CHECK(parse(bytes_of("{}")).tensors().empty());
}

TEST_CASE("safetensors: the header's length") {
  refused({}, "at least 8");
  refused(std::vector<std::byte>(7), "at least 8");
  refused(bytes_of("{}", 0, 3), "header length must fit into the file");
  refused(bytes_of("{}", 0, 100'000'001), "at most 100000000");
  refused(bytes_of("{}", 0, 1ull << 62), "at most 100000000");
  refused(bytes_of("{}", 0, UINT64_MAX), "at most 100000000");
  refused(bytes_of("", 0), "must start with '{'");
}

TEST_CASE("safetensors: what is no header") {
  refused(bytes_of(" {}"), "must start with '{'");
  refused(bytes_of("[]"), "must start with '{'");
  refused(bytes_of("{"), "header byte");
  refused(bytes_of("{}x"), "header byte");
  refused(bytes_of("{\"a\xff\":{}}"), "header byte");  // not UTF-8
  refused(bytes_of(R"({"w":1})"), "must be an object");
  refused(bytes_of(R"({"w":[]})"), "must be an object");
  refused(bytes_of(R"({"w":"x"})"), "must be an object");
  refused(bytes_of(R"({"w":null})"), "must be an object");
  refused(bytes_of(R"({"w":{}})"), "dtype is missing");
  refused(bytes_of(R"({"w":{"dtype":"U8","shape":[]}})"), "data_offsets is missing");
  refused(bytes_of(R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1), "shape is missing");
  refused(bytes_of(R"({"w":{"dtype":{},"shape":[],"data_offsets":[0,1]}})", 1), "must be a string");
  refused(bytes_of(R"({"w":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1), "unsigned integer");
  refused(bytes_of(R"({"w":{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}})", 1), "a number");
  refused(bytes_of(R"({"w":{"strides":[1]}})"), "must be one of dtype, shape, data_offsets");
  refused(bytes_of(R"({"__metadata__":{"a":1}})"), "must be a string");
  refused(bytes_of(R"({"__metadata__":{"a":{}}})"), "must be a string");
  refused(bytes_of(R"({"__metadata__":[]})"), "must be an object");
  // A nesting that recursion would not survive.
  refused(bytes_of("{\"w\":" + std::string(1 << 20, '[')), "must be an object");
  refused(bytes_of("{\"w\":{\"dtype\":" + std::string(1 << 20, '[')), "must be a string");
}

TEST_CASE("safetensors: names that occur twice") {
  const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  refused(bytes_of("{" + a + R"(,"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2), "occurs twice");
  refused(bytes_of(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1), "occurs twice");
  refused(bytes_of(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1), "occurs twice");
  refused(bytes_of(R"({"__metadata__":{},"__metadata__":{}})"), "occurs twice");
  refused(bytes_of(R"({"__metadata__":{"k":"1","k":"2"}})"), "occurs twice");
}

TEST_CASE("safetensors: shapes, types and sizes") {
  refused(bytes_of(one("F17", "[1]", "[0,2]"), 2), "one of BOOL");
  refused(bytes_of(one("F32", "[2]", "[0,4]"), 4), "64 bits");
  refused(bytes_of(one("F32", "[1]", "[0,8]"), 8), "32 bits");
  refused(bytes_of(one("F4", "[3]", "[0,1]"), 1), "12 bits");
  refused(bytes_of(one("F64", "[2305843009213693952,8]", "[0,0]")), "2^64");  // wraps to nothing
  refused(bytes_of(one("U8", "[18446744073709551615]", "[0,0]")), "2^63");
  refused(bytes_of(one("U8", "[9223372036854775807,2]", "[0,0]")), "2^63");
  refused(bytes_of(one("U8", "[-1]", "[0,0]")), "unsigned");
  refused(bytes_of(one("U8", "[1.5]", "[0,1]"), 1), "unsigned");
  refused(bytes_of(one("U8", "[99999999999999999999]", "[0,1]"), 1), "unsigned");
  refused(bytes_of(one("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), "at most 16");
  CHECK(parse(bytes_of(one("F4", "[2,4]", "[0,4]"), 4)).tensors()[0].bytes == 4);
}

TEST_CASE("safetensors: tensors fill the file from the header to its end") {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[8],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[8],"data_offsets":)" + b + "}}";
  };
  CHECK(parse(bytes_of(two("[0,8]", "[8,16]"), 16)).tensors()[0].name == "a");
  CHECK(parse(bytes_of(two("[8,16]", "[0,8]"), 16)).tensors()[0].name == "b");
  refused(bytes_of(two("[0,8]", "[4,12]"), 12), "overlap");
  refused(bytes_of(two("[0,8]", "[0,8]"), 8), "overlap");
  refused(bytes_of(two("[0,8]", "[9,17]"), 17), "hole");
  refused(bytes_of(two("[1,9]", "[9,17]"), 17), "hole");
  refused(bytes_of(two("[0,8]", "[16,8]"), 16), "backwards");
  refused(bytes_of(two("[0,8]", "[8]"), 16), "must be two");
  refused(bytes_of(two("[0,8]", "[8,16,24]"), 16), "must be two");
  refused(bytes_of(two("[0,8]", "[8,16]"), 15), "15 bytes that follow");
  refused(bytes_of(two("[0,8]", "[8,16]"), 17), "17 bytes that follow");
  refused(bytes_of("{}", 1), "1 bytes that follow");
}

TEST_CASE("safetensors: a format has its dtype's bytes") {
  for (const char* dtype : {"F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I8", "I32"}) {
    for (const int bytes : {1, 2, 4}) {
      const auto file = bytes_of(one(dtype, "[2,3]", "[0," + std::to_string(6 * bytes) + "]"), 6u * bytes);
      try {
        const SafetensorsTensor t = parse(file).tensors()[0];
        CHECK(Format::parse(t.format).stream_bytes(0, 2, 3) == 6 * bytes);
      } catch (const Error& e) {
        CHECK(std::string(e.what()).find("data_offsets") != std::string::npos);
      }
    }
  }
}

TEST_CASE("safetensors: a tensor for CheckpointWeight") {
  const auto bytes = bytes_of(R"({"q":{"dtype":"I32","shape":[2,3],"data_offsets":[0,24]},)"
                              R"("g":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
                              R"("f":{"dtype":"F32","shape":[1],"data_offsets":[32,36]},)"
                              R"("c":{"dtype":"I32","shape":[1,1,1],"data_offsets":[36,40]}})",
                              40);
  const Safetensors file = parse(bytes);
  const auto q = file.read(file.tensor("q"));
  const CheckpointTensor t = checkpoint_tensor(file.tensor("q"), q);
  CHECK(t.rows == 2);
  CHECK(t.cols == 3);
  CHECK(t.type == TensorType::i32);
  CHECK(t.bytes.size() == 24);
  const CheckpointTensor g = checkpoint_tensor(file.tensor("g"), {});
  CHECK(g.rows == 1);
  CHECK(g.cols == 4);
  CHECK(g.type == TensorType::bf16);
  CHECK_THROWS_AS(checkpoint_tensor(file.tensor("f"), {}), Error);
  CHECK_THROWS_AS(checkpoint_tensor(file.tensor("c"), {}), Error);
}

TEST_CASE("safetensors: only regular files") {
  const std::string path = paths::binary_dir() + "/safetensors-test.fifo";
  ::unlink(path.c_str());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  for (const std::string& file : {path, std::string("/dev/zero"), std::string("/"), std::string("/nonexistent")}) {
    try {
      Safetensors::open(file);
      FAIL("accepted " << file);
    } catch (const Error& e) {
      CHECK(e.code() == ErrorCode::io);
      CHECK(e.value() == file);
    }
  }
  ::unlink(path.c_str());
}

TEST_CASE("safetensors: every prefix of a right file is refused") {
  const auto bytes = bytes_of(kSample, 32);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    CHECK_THROWS_AS(parse(std::vector<std::byte>(bytes.begin(), bytes.begin() + static_cast<long>(n))), Error);
}

TEST_CASE("safetensors: damaged files are refused or read in bounds") {
  const auto seed = bytes_of(kSample, 32);
  const char characters[] = "{}[]\":,0123456789-.eE \\utrfn\xff";
  std::mt19937_64 random(41);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    auto bytes = seed;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0: bytes[at] ^= static_cast<std::byte>(1u << random() % 8); break;
        case 1: bytes[at] = static_cast<std::byte>(characters[random() % (sizeof characters - 1)]); break;
        default: bytes.insert(bytes.begin() + static_cast<long>(at), bytes[random() % bytes.size()]);
      }
    }
    try {
      const Safetensors file = parse(bytes);
      for (const SafetensorsTensor& t : file.tensors()) REQUIRE(file.read(t).size() == t.bytes);
      ++accepted;
    } catch (const Error& e) {
      REQUIRE(e.code() != ErrorCode::io);
    }
  }
  CHECK(accepted > 100);
  CHECK(accepted < 20000);
}
