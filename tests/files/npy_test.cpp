// SPDX-License-Identifier: Apache-2.0
#include <tilewright/npy.h>

#include <tilewright/error.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/catch.h"
#include "support/paths.h"
#include "support/refusal.h"

using namespace tilewright;

namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::string file(const std::string& header, std::size_t data, int major = 1) {
  std::string text = "\x93NUMPY";
  text += static_cast<char>(major);
  text += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) text += static_cast<char>(header.size() >> 8 * i);
  text += header;
  for (std::size_t i = 0; i < data; ++i) text += static_cast<char>(i);
  return text;
}

std::string dict(const std::string& descr, const std::string& shape, const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }   \n";
}

Npy parse(const std::vector<std::byte>& bytes) { return Npy(ByteSource::memory(bytes)); }

Error error_of(const std::string& text) {
  INFO(text);
  const std::vector<std::byte> bytes = bytes_of(text);
  const Error e = refusal([&] { parse(bytes); });
  CHECK_FALSE(e.field().empty());
  CHECK(e.code() != ErrorCode::io);
  return e;
}

}  // namespace

TEST_CASE("npy: every type and version that is read") {
  struct Case {
    const char *dtype, *format;
    std::size_t size;
  };
  for (const Case c : {Case{"<f2", "f16", 2}, {"<f4", "f32", 4}, {"<f8", "", 8}, {"<V2", "bf16", 2}})
    for (const int version : {1, 2, 3}) {
      INFO(c.dtype << " " << version);
      const std::string text = file(dict(c.dtype, "(2, 3)"), 6 * c.size, version);
      const std::vector<std::byte> bytes = bytes_of(text);
      const Npy array = parse(bytes);
      CHECK(array.dtype() == c.dtype);
      CHECK(array.format() == c.format);
      CHECK(array.shape() == std::vector<std::int64_t>{2, 3});
      CHECK(array.bytes() == 6 * c.size);
      CHECK(array.offset() + array.bytes() == text.size());
      std::byte part[3];
      array.read(2, part);
      CHECK(part[0] == std::byte{2});
      CHECK(part[2] == std::byte{4});
      CHECK(refusal([&] { array.read(array.bytes() - 2, part); }).field() == "part of the array");
      CHECK(refusal([&] { array.read(array.bytes() + 1, {}); }).field() == "part of the array");
      array.read(array.bytes(), {});
    }
}

TEST_CASE("npy: shapes without elements, of one, and of as many axes as NumPy has") {
  const auto shape = [](const std::string& text, std::size_t data) {
    const std::vector<std::byte> bytes = bytes_of(file(dict("<f4", text), data));
    return parse(bytes).shape();
  };
  CHECK(shape("()", 4).empty());
  CHECK(shape("(3,)", 12) == std::vector<std::int64_t>{3});
  CHECK(shape("(0, 7)", 0) == std::vector<std::int64_t>{0, 7});
  std::string ones = "(";
  for (int i = 0; i < 64; ++i) ones += "1, ";
  CHECK(shape(ones + ")", 4).size() == 64);
  CHECK(error_of(file(dict("<f4", ones + "1)"), 4)).code() == ErrorCode::too_large);
}

TEST_CASE("npy: keys in any order, with either quotes and without a last comma") {
  const std::vector<std::byte> bytes = bytes_of(file("{\"shape\":(1,),'fortran_order':False,\"descr\":\"<f4\"}\n", 4));
  CHECK(parse(bytes).shape() == std::vector<std::int64_t>{1});
}

TEST_CASE("npy: what is not read is refused by name") {
  const auto field = [](const std::string& text) { return error_of(text).field(); };
  const auto header = [](const std::string& text) { return error_of(file(text, 4)); };
  for (const char* type : {">f4", "|f4", "<i4", "|V2", "<c8", "<f16", "|O", "f4", ""}) {
    INFO(type);
    const Error e = header(dict(type, "(1,)"));
    CHECK(e.code() == ErrorCode::unsupported);
    CHECK(e.field() == "header 'descr'");
    CHECK(e.value() == type);
  }
  CHECK(header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}").code() == ErrorCode::unsupported);
  CHECK(header(dict("<f4", "(1,)", "True")).value() == "True");
  CHECK(header(dict("<f4", "(1,)", "0")).field() == "header");
  CHECK(header("{'descr': '<f4', 'fortran_order': False}").field() == "header 'shape'");
  CHECK(header("{}").field() == "header 'descr'");
  CHECK(header("{'descr': '<f4', 'descr': '<f4'}").allowed() == "occurs twice");
  CHECK(header("{'shape': (), 'shape': ()}").allowed() == "occurs twice");
  CHECK(header("{'fortran_order': False, 'fortran_order': False}").allowed() == "occurs twice");
  CHECK(header("{'more': 1}").value() == "more");
  CHECK(header(dict("<f4", "(1,)") + "x").field() == "header");
  for (const char* shape : {"(1)", "(-1,)", "(1 2)", "(,)", "(1,,)", "(1", "[1]", "(1.0,)", "(a,)", "1", "(0x1,)"}) {
    INFO(shape);
    CHECK(header(dict("<f4", shape)).field().find("header") == 0);
  }
  CHECK(header(dict("<f4", "(9223372036854775808,)")).code() == ErrorCode::too_large);
  CHECK(header(dict("<f4", "(9223372036854775807, 9223372036854775807)")).code() == ErrorCode::too_large);
  CHECK(header(dict("<f4", "(2,)")).value() == "8 bytes");  // than there are
  CHECK(header(dict("<f4", "(0,)")).value() == "0 bytes");  // bytes after the array
  CHECK(field("") == "magic");
  CHECK(field("\x93NUMPY") == "magic");
  CHECK(field("GGUF\0\0\0\0\0\0\0\0") == "magic");
  std::string wrong = file(dict("<f4", "(1,)"), 4);
  wrong[6] = 4;
  CHECK(error_of(wrong).value() == "4.0");
  wrong[6] = 1, wrong[7] = 1;
  CHECK(error_of(wrong).value() == "1.1");
  CHECK(field(std::string("\x93NUMPY\2\0\1\0", 10)) == "file");
  CHECK(field(std::string("\x93NUMPY\1\0\xff\xff", 10)) == "header length");
  CHECK(error_of(std::string("\x93NUMPY\2\0\0\0\1\1", 12)).code() == ErrorCode::too_large);
}

TEST_CASE("npy: every file that is cut short is refused") {
  const std::string whole = file(dict("<f4", "(3,)"), 12, 2);
  for (std::size_t n = 0; n < whole.size(); ++n) error_of(whole.substr(0, n));
}

TEST_CASE("npy: what NumPy wrote") {
  const std::string folder = paths::source_dir() + "/tests/golden/calibration/";
  CHECK(Npy::open(folder + "gauss.npy").shape() == std::vector<std::int64_t>{4, 600});
  CHECK(Npy::open(folder + "relu.npy").format() == "f16");
  CHECK(Npy::open(folder + "skewed.npy").dtype() == "<f8");
  CHECK(refusal([&] { Npy::open(folder + "none.npy"); }).code() == ErrorCode::io);
}
