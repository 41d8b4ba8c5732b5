// SPDX-License-Identifier: Apache-2.0
// Model files and checkpoints' weights.
#include <cstdio>

#include "capi/capi_test.h"

namespace tilewright::test {
namespace {

void write(const std::string& path, const std::string& bytes) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "wb"), &std::fclose);
  REQUIRE(std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size());
}

struct Model {
  tw_model* handle = nullptr;
  explicit Model(const std::string& path) {
    succeed([&](tw_error** e) { return tw_model_open(path.c_str(), &handle, e); });
  }
  ~Model() { tw_model_release(handle); }
};

TEST_CASE("a GGUF file: tensors outermost extent first, bytes, metadata in words") {
  const Model m(paths::source_dir() + "/examples/models/minilm-l6-v2-tiny.gguf");
  REQUIRE(tw_model_tensor_count(m.handle) > 0);
  tw_tensor_info t = TW_TENSOR_INFO_INIT;
  succeed([&](tw_error** e) { return tw_model_find(m.handle, "blk.0.ffn_down.weight.q4_0", &t, e); });
  REQUIRE(t.dim_count == 2);
  CHECK(t.dims[0] == 384);
  CHECK(t.dims[1] == 1536);
  CHECK(std::string(t.type) == "q4_0");
  CHECK(std::string(t.format) == "q4_0");
  CHECK(t.bytes == 384 * 1536 / 32 * 18);
  std::vector<unsigned char> whole(t.bytes), part(36);
  succeed([&](tw_error** e) { return tw_model_read(m.handle, t.name, 0, whole.data(), whole.size(), e); });
  succeed([&](tw_error** e) { return tw_model_read(m.handle, t.name, 18, part.data(), part.size(), e); });
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 18));
  CHECK(failure([&](tw_error** e) {
          return tw_model_read(m.handle, t.name, 1, whole.data(), whole.size(), e);
        }).status == TW_INVALID_ARGUMENT);
  CHECK(failure([&](tw_error** e) { return tw_model_read(m.handle, t.name, 0, nullptr, 1, e); }).field == "to");
  CHECK(failure([&](tw_error** e) { return tw_model_find(m.handle, "none", &t, e); }).value == "none");
  CHECK(failure([&](tw_error** e) { return tw_model_tensor(m.handle, -1, &t, e); }).field == "index");
  REQUIRE(tw_model_metadata_count(m.handle) > 0);
  const char* key = tw_model_metadata_key(m.handle, 0);
  REQUIRE(key != nullptr);
  CHECK(tw_model_metadata(m.handle, key) != nullptr);
  CHECK(tw_model_metadata(m.handle, "none") == nullptr);
  CHECK(tw_model_metadata_key(m.handle, tw_model_metadata_count(m.handle)) == nullptr);
}

TEST_CASE("a safetensors file, and files that are neither") {
  const Scratch scratch;
  const std::string path = scratch.file("a.safetensors");
  const std::string header =
      R"({"__metadata__":{"by":"hand"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  std::string bytes(8, 0);
  bytes[0] = static_cast<char>(header.size());
  bytes += header;
  for (int i = 0; i < 6; ++i) {
    const float v = static_cast<float>(i);
    bytes.append(reinterpret_cast<const char*>(&v), 4);
  }
  write(path, bytes);
  const Model m(path);
  tw_tensor_info t = TW_TENSOR_INFO_INIT;
  succeed([&](tw_error** e) { return tw_model_tensor(m.handle, 0, &t, e); });
  CHECK(std::string(t.name) == "w");
  CHECK(std::string(t.type) == "F32");
  CHECK(std::string(t.format) == "f32");
  CHECK(t.dims[1] == 3);
  float values[6] = {};
  succeed([&](tw_error** e) { return tw_model_read(m.handle, "w", 0, values, sizeof values, e); });
  CHECK(values[5] == 5);
  CHECK(std::string(tw_model_metadata(m.handle, "by")) == "hand");

  tw_model* none = nullptr;
  write(scratch.file("short"), "GG");
  write(scratch.file("gguf"), "GGUF");
  for (const char* name : {"short", "gguf", "missing"}) {
    const Failure f = failure([&](tw_error** e) { return tw_model_open(scratch.file(name).c_str(), &none, e); });
    CHECK((f.status == TW_IO || f.status == TW_INVALID_ARGUMENT));
  }
  CHECK(none == nullptr);
}

// A GPTQ layer of n = 8, k = 32 in groups of 32: code (column + row) mod 16, zero point 8, scales of 0.5.
struct Gptq {
  uint32_t codes[4 * 8] = {}, zeros[1] = {};
  uint16_t scales[8];
  int32_t g_idx[32];
  tw_checkpoint_weight weight = TW_CHECKPOINT_WEIGHT_INIT;
  Gptq() {
    for (uint32_t r = 0; r < 8; ++r)
      for (uint32_t c = 0; c < 32; ++c) codes[c / 8 * 8 + r] |= ((c + r) % 16) << (4 * (c % 8));
    for (int i = 0; i < 8; ++i) zeros[0] |= 7u << (4 * i);
    for (uint16_t& s : scales) s = 0x3800;  // 0.5
    for (int32_t& g : g_idx) g = 0;
    weight.packing = "gptq";
    weight.n = 8, weight.k = 32, weight.group = 32;
    weight.codes = {codes, 4, 8, "i32"};
    weight.zeros = {zeros, 1, 1, "i32"};
    weight.scales = {scales, 1, 8, "f16"};
    weight.g_idx = {g_idx, 1, 32, "i32"};
  }
};

TEST_CASE("a GPTQ layer is imported, decoded and exported again") {
  Gptq g;
  const char* format = nullptr;
  int32_t count = 0, permuted = -1;
  succeed([&](tw_error** e) { return tw_import_format(&g.weight, 0, &format, &count, e); });
  CHECK(count >= 1);
  const std::string chosen = format;
  CHECK(failure([&](tw_error** e) { return tw_import_format(&g.weight, count, &format, &count, e); }).field == "index");
  succeed([&](tw_error** e) { return tw_import_order(&g.weight, nullptr, &permuted, e); });
  CHECK(permuted == 0);
  int64_t data_bytes = 0, scale_bytes = 0;
  succeed([&](tw_error** e) { return tw_stream_bytes(chosen.c_str(), TW_DATA, 8, 32, &data_bytes, e); });
  succeed([&](tw_error** e) { return tw_stream_bytes(chosen.c_str(), TW_SCALES, 8, 32, &scale_bytes, e); });
  std::vector<float> data(static_cast<size_t>(data_bytes + 3) / 4), scales(static_cast<size_t>(scale_bytes + 3) / 4),
      w(8 * 32);
  const auto data_size = static_cast<size_t>(data_bytes), scales_size = static_cast<size_t>(scale_bytes);
  succeed([&](tw_error** e) {
    return tw_import_weights(&g.weight, chosen.c_str(), data.data(), data_size, scales.data(), scales_size, e);
  });
  succeed([&](tw_error** e) {
    return tw_decode(chosen.c_str(), {data.data(), scales.data(), nullptr}, 8, 32, w.data(), e);
  });
  for (int r = 0; r < 8; ++r)
    for (int c = 0; c < 32; ++c)
      CHECK(w[static_cast<size_t>(r * 32 + c)] == 0.5f * static_cast<float>((c + r) % 16 - 8));

  tw_exported exported = TW_EXPORTED_INIT;
  succeed([&](tw_error** e) {
    return tw_export_weights(chosen.c_str(), data.data(), data_size, scales.data(), scales_size, &g.weight, nullptr,
                             &exported, e);
  });
  REQUIRE(exported.codes_bytes == sizeof g.codes);
  CHECK(std::memcmp(exported.codes, g.codes, sizeof g.codes) == 0);
  REQUIRE(exported.scales_bytes == sizeof g.scales);
  CHECK(std::memcmp(exported.scales, g.scales, sizeof g.scales) == 0);
  for (void* bytes : {exported.codes, exported.zeros, exported.scales, exported.g_idx}) tw_free(bytes);

  std::vector<int32_t> order = {7, 6, 5, 4, 3, 2, 1, 0};
  std::vector<float> from(8 * 4), to(8 * 4);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  succeed([&](tw_error** e) {
    return tw_gather_rows("f32", 4, order.data(), order.size(), {from.data(), nullptr, nullptr},
                          {to.data(), nullptr, nullptr}, e);
  });
  CHECK(to[0] == from[28]);
}

TEST_CASE("an act-order layer gives its order, and a broken one an error that names the tensor") {
  Gptq g;
  g.weight.k = 32, g.weight.group = 16;
  uint16_t scales[16];
  uint32_t zeros[2] = {g.zeros[0], g.zeros[0]};
  for (uint16_t& s : scales) s = 0x3800;
  g.weight.scales = {scales, 2, 8, "f16"};
  g.weight.zeros = {zeros, 2, 1, "i32"};
  for (int i = 0; i < 32; ++i) g.g_idx[i] = i % 2;
  const char* format = nullptr;
  int32_t count = 0, permuted = 0;
  // No format has groups of 16 with these scales; the order is found before that matters.
  std::vector<int32_t> order(32);
  succeed([&](tw_error** e) { return tw_import_order(&g.weight, order.data(), &permuted, e); });
  CHECK(permuted == 1);
  CHECK(order[1] == 2);
  CHECK(failure([&](tw_error** e) { return tw_import_format(&g.weight, 0, &format, &count, e); }).status ==
        TW_UNSUPPORTED);

  const auto refused = [&](auto change) {
    Gptq broken;
    change(broken.weight);
    return failure([&](tw_error** e) { return tw_import_format(&broken.weight, 0, &format, &count, e); });
  };
  CHECK(refused([](tw_checkpoint_weight& w) { w.packing = "gguf"; }).allowed.find("awq") != std::string::npos);
  CHECK(refused([](tw_checkpoint_weight& w) { w.packing = nullptr; }).field == "packing");
  CHECK(refused([](tw_checkpoint_weight& w) { w.codes.bytes = nullptr; }).field == "qweight");
  CHECK(refused([](tw_checkpoint_weight& w) { w.scales.type = "f64"; }).field == "scales.type");
  CHECK(refused([](tw_checkpoint_weight& w) { w.codes.rows = -1; }).field == "codes");
  CHECK(refused([](tw_checkpoint_weight& w) { w.codes.rows = int64_t{1} << 62; }).field == "codes");
  CHECK(refused([](tw_checkpoint_weight& w) { w.bits = 5; }).status == TW_UNSUPPORTED);
}

}  // namespace
}  // namespace tilewright::test
