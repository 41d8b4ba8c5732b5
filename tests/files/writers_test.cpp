// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <tilewright/error.h>
#include <tilewright/gguf.h>
#include <tilewright/safetensors.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "support/catch.h"
#include "support/paths.h"
#include "support/refusal.h"

using namespace tilewright;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / ("tilewright-writers-" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const char* name) const { return (path / name).string(); }
};

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::byte> pattern(std::uint64_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 7 + seed) % 251);
  return bytes;
}

// The tensors of tests/golden/make_model_files.py.
const std::vector<SafetensorsInfo> kTensors = {{"z.weight", "F32", {3, 5}},  {"a.weight", "F16", {2, 4}},
                                               {"b.weight", "BF16", {7}},    {"a.codes", "U8", {5}},
                                               {"a.bytes", "I8", {3}},       {"scales", "F8_E4M3", {9}},
                                               {"wide", "F8_E5M2", {3}},     {"powers", "F8_E8M0", {2}},
                                               {"fnuz", "F8_E4M3FNUZ", {3}}, {"step", "I64", {}},
                                               {"none", "I32", {0, 4}},      {"words", "I32", {2}},
                                               {"doubles", "F64", {1}},      {"short \"\u00e4\" \\ \n", "I16", {3}},
                                               {"flags", "U16", {1}}};

// Writes pattern(seed = index) to every tensor, in two parts each, the second parts in the opposite order.
void fill(ModelWriter& writer, const std::vector<std::string>& names, std::uint64_t first_seed) {
  std::vector<std::vector<std::byte>> bytes;
  for (std::size_t i = 0; i < names.size(); ++i) {
    bytes.push_back(pattern(writer.bytes(names[i]), first_seed + i));
    writer.write(names[i], std::span(bytes[i]).first(bytes[i].size() / 3));
  }
  for (std::size_t i = names.size(); i-- > 0;) writer.write(names[i], std::span(bytes[i]).subspan(bytes[i].size() / 3));
}

std::vector<std::string> names_of(const std::vector<SafetensorsInfo>& tensors) {
  std::vector<std::string> names;
  for (const auto& t : tensors) names.push_back(t.name);
  return names;
}

void refused(const std::vector<SafetensorsInfo>& tensors, const std::string& part, const std::string& path) {
  const Error e = refusal([&] { SafetensorsWriter(path, tensors); });
  INFO(e.what());
  CHECK(std::string(e.what()).find(part) != std::string::npos);
  CHECK_FALSE(fs::exists(path + ".part"));
}
void refused(const std::vector<GgufInfo>& tensors, const std::vector<GgufField>& fields, const std::string& part,
             const std::string& path) {
  const Error e = refusal([&] { GgufWriter(path, tensors, fields); });
  INFO(e.what());
  CHECK(std::string(e.what()).find(part) != std::string::npos);
  CHECK_FALSE(fs::exists(path + ".part"));
}

}  // namespace

TEST_CASE("writers: a safetensors file has the bytes of the reference implementation") {
  const Folder folder;
  const std::string path = folder / "m.safetensors";
  SafetensorsWriter writer(path, kTensors, {{"format", "pt"}});
  fill(writer, names_of(kTensors), 0);
  writer.finish();
  CHECK(slurp(path) == slurp(paths::source_dir() + "/tests/golden/model.safetensors"));
  CHECK_FALSE(fs::exists(path + ".part"));
  const Safetensors file = Safetensors::open(path);
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    const SafetensorsTensor& t = file.tensor(kTensors[i].name);
    CHECK(t.dtype == kTensors[i].dtype);
    CHECK(t.shape == kTensors[i].shape);
    CHECK(file.read(t) == pattern(t.bytes, i));
  }
}

TEST_CASE("writers: a GGUF file has the bytes of the reference implementation") {
  const Folder folder;
  const std::string path = folder / "m.gguf";
  const std::string texts[] = {"x", "", "yz"};
  const std::vector<GgufField> fields = {GgufField::text("general.architecture", "test"),
                                         GgufField::u32("a.number", 7),
                                         GgufField::f32("a.float", 0.5f),
                                         GgufField::boolean("a.bool", true),
                                         GgufField::text("a.text", "\u00e4"),
                                         GgufField::texts("a.texts", texts)};
  const std::vector<GgufInfo> tensors = {{"q.weight", {64, 3}, *gguf_type("q8_0")},
                                         {"n.weight", {5}, *gguf_type("f32")},
                                         {"h", {5, 3, 2}, *gguf_type("f16")},
                                         {"k.weight", {256, 1}, *gguf_type("q4_k")}};
  GgufWriter writer(path, tensors, fields);
  fill(writer, {"q.weight", "n.weight", "h", "k.weight"}, 1);
  writer.finish();
  const std::string golden = paths::source_dir() + "/tests/golden/model.gguf";
  CHECK(slurp(path) == slurp(golden));

  // Keys that are copied from a file are what they were, arrays too.
  const Gguf from = Gguf::open(golden);
  std::vector<GgufField> copied;
  for (const auto& [key, value] : from.metadata()) copied.push_back(from.field(key));
  CHECK_THROWS_AS(from.field("none"), Error);
  GgufWriter again(folder / "n.gguf", tensors, copied);
  fill(again, {"q.weight", "n.weight", "h", "k.weight"}, 1);
  again.finish();
  CHECK(slurp(folder / "n.gguf") == slurp(golden));
}

TEST_CASE("writers: what is not finished never looks whole") {
  const Folder folder;
  const std::string path = folder / "m.safetensors", part = path + ".part";
  std::ofstream(path) << "old";
  {
    SafetensorsWriter writer(path, kTensors);
    fill(writer, names_of(kTensors), 0);
    CHECK(slurp(path) == "old");
    CHECK_THROWS_AS(Safetensors::open(part), Error);
    CHECK(std::string(refusal([&] { SafetensorsWriter(path, kTensors); }).what()).find("another process") !=
          std::string::npos);
  }
  CHECK_FALSE(fs::exists(part));
  CHECK(slurp(path) == "old");
  {
    SafetensorsWriter writer(path, kTensors);
    writer.write("z.weight", pattern(60, 0));
    const Error e = refusal([&] { writer.finish(); });
    CHECK(std::string(e.what()).find("before the file is finished") != std::string::npos);
    CHECK_THROWS_AS(writer.write("z.weight", pattern(1, 0)), Error);
    CHECK_THROWS_AS(writer.write("none such", {}), Error);
    writer.keep_part();
  }
  REQUIRE(fs::exists(part));
  {
    SafetensorsWriter writer(path, kTensors, {}, ModelWriter::Start::resume);
    std::vector<std::byte> bytes(60);
    writer.read("z.weight", 0, bytes);
    CHECK(bytes == pattern(60, 0));
    CHECK_THROWS_AS(writer.read("z.weight", 1, bytes), Error);
    writer.skip("z.weight");
    for (std::size_t i = 1; i < kTensors.size(); ++i)
      writer.write(kTensors[i].name, pattern(writer.bytes(kTensors[i].name), i));
    writer.finish();
  }
  CHECK(Safetensors::open(path).tensors().size() == kTensors.size());
  CHECK_FALSE(fs::exists(part));
}

TEST_CASE("writers: a part file is resumed only if it is the same file") {
  const Folder folder;
  const std::string path = folder / "m.safetensors", part = path + ".part";
  const auto resume = [&](std::vector<SafetensorsInfo> tensors) {
    return std::string(refusal([&] { SafetensorsWriter(path, tensors, {}, ModelWriter::Start::resume); }).what());
  };
  CHECK(resume(kTensors).find("No such file") != std::string::npos);
  SafetensorsWriter(path, kTensors).keep_part();
  auto others = kTensors;
  others[0].name = "y.weight";
  CHECK(resume(others).find("header") != std::string::npos);
  others.pop_back();
  CHECK(resume(others).find("cut") != std::string::npos);
  fs::resize_file(part, fs::file_size(part) - 1);
  CHECK(resume(kTensors).find("cut") != std::string::npos);
  CHECK(fs::exists(part));  // it is the user's to remove

  fs::remove(part);
  fs::create_symlink(folder / "elsewhere", part);
  CHECK_THROWS_AS(SafetensorsWriter(path, kTensors), Error);
  CHECK_FALSE(fs::exists(folder / "elsewhere"));
  CHECK_THROWS_AS(SafetensorsWriter(folder / "none/m.safetensors", kTensors), Error);
}

TEST_CASE("writers: declarations that make no file are refused") {
  const Folder folder;
  const std::string path = folder / "m";
  refused({{"w", "F31", {1}}}, "F31", path);
  refused({{"w", "F32", {1}}, {"w", "F16", {1}}}, "twice", path);
  refused({{"__metadata__", "F32", {1}}}, "twice", path);
  refused({{"w", "F32", {-1}}}, "0 or more", path);
  refused({{"w", "F4", {3}}}, "whole bytes", path);
  refused({{"w", "F32", {1ll << 40, 1ll << 40}}}, "2^64", path);
  refused({{"w", "F32", {1ll << 62}}}, "2^64", path);
  refused({{"w", "F32", std::vector<std::int64_t>(17, 1)}}, "16", path);
  refused({{"\xff", "F32", {1}}}, "UTF-8", path);
  CHECK_THROWS_AS(SafetensorsWriter(path, kTensors, {{"a", "1"}, {"a", "2"}}), Error);

  const std::uint32_t f32 = *gguf_type("f32");
  refused({{"", {1}, f32}}, {}, "63", path);
  refused({{std::string(64, 'x'), {1}, f32}}, {}, "63", path);
  refused({{"w", {1}, f32}, {"w", {1}, f32}}, {}, "twice", path);
  refused({{"w", {}, f32}}, {}, "1 to 4", path);
  refused({{"w", {1, 1, 1, 1, 1}, f32}}, {}, "1 to 4", path);
  refused({{"w", {0}, f32}}, {}, "shape[0]", path);
  refused({{"w", {33}, 2}}, {}, "multiple of 32", path);
  refused({{"w", {1}, 99}}, {}, "99", path);
  refused({{"w", {1}, f32}}, {GgufField::u32("a", 1), GgufField::u32("a", 2)}, "twice", path);
  refused({{"w", {1}, f32}}, {GgufField::u32("general.alignment", 3)}, "power of two", path);
  refused({{"w", {1}, f32}}, {GgufField{"a", 99, {}}}, "99", path);
  refused({{"w", {1}, f32}}, {GgufField{"a", 4, pattern(3, 0)}}, "bytes", path);
  refused({{"w", {1}, f32}}, {GgufField{"a", 4, pattern(5, 0)}}, "4", path);
  refused({{"w", {1}, f32}}, {GgufField::u32("", 1)}, "key", path);
  CHECK_FALSE(gguf_type("int4_g128"));
  CHECK_FALSE(gguf_type(""));
  CHECK(gguf_type("q4_K") == gguf_type("q4_k"));
}

TEST_CASE("writers: random files come back through the readers") {
  const Folder folder;
  std::mt19937 random(5);
  const char* dtypes[] = {"F32", "F16", "U8", "I64", "BF16", "F8_E4M3"};
  for (int round = 0; round < 20; ++round) {
    std::vector<SafetensorsInfo> tensors;
    std::vector<GgufInfo> infos;
    for (int i = 0; i < static_cast<int>(random() % 9); ++i) {
      const std::int64_t rows = random() % 5, cols = random() % 70;
      tensors.push_back({"t" + std::to_string(i), dtypes[random() % 6], {rows, cols}});
      const std::uint32_t types[] = {0, 1, 8, 27};
      infos.push_back({tensors.back().name, {32 * (cols / 32 + 1), rows + 1}, types[random() % 4]});
    }
    const auto alignment = 8u << (random() % 6);
    SafetensorsWriter a(folder / "a", tensors);
    GgufWriter b(folder / "b", infos, std::vector{GgufField::u32("general.alignment", alignment)});
    fill(a, names_of(tensors), 0), fill(b, names_of(tensors), 0);
    a.finish(), b.finish();
    const Safetensors s = Safetensors::open(folder / "a");
    const Gguf g = Gguf::open(folder / "b");
    CHECK(g.alignment() == alignment);
    CHECK(fs::file_size(folder / "b") % alignment == 0);
    REQUIRE(s.tensors().size() == tensors.size());
    REQUIRE(g.tensors().size() == tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto& t = s.tensor(tensors[i].name);
      const auto& u = g.tensor(tensors[i].name);
      CHECK(s.read(t) == pattern(t.bytes, i));
      CHECK(g.read(u) == pattern(u.bytes, i));
      CHECK(u.dims == infos[i].dims);
    }
  }
}
