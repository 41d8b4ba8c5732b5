// SPDX-License-Identifier: Apache-2.0
// Whole files: what is chosen, what lies where, and what is left by a run that was stopped.
#include <tilewright/error.h>
#include <tilewright/gguf.h>
#include <tilewright/import.h>
#include <tilewright/quantize_model.h>
#include <tilewright/safetensors.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "quantize/small_model.h"
#include "support/catch.h"
#include "support/refusal.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("quantize: GGUF has the encoder's bytes, and everything else as it was") {
  const Model model;
  const QuantizeReport report = model.quantize("q4_0", "o.gguf");
  CHECK(quantized(report) == Names{"a.weight", "b.weight", "c.weight"});
  const Gguf out = Gguf::open(model / "o.gguf");
  const Safetensors in = Safetensors::open(model.input[0]);
  REQUIRE(out.tensors().size() == in.tensors().size());
  CHECK(std::get<std::uint64_t>(*out.value("general.quantization_version")) == 2);
  for (const TensorReport& t : report.tensors) {
    const GgufTensor& o = out.tensor(t.name);
    CHECK(o.bytes == t.bytes_after);
    if (!t.quantized) {
      CHECK_FALSE(t.kept.empty());
      CHECK(out.read(o) == in.read(in.tensor(t.name)));
    }
  }
  std::vector<std::byte> expected(static_cast<std::size_t>(24 * 256 / 32 * 18));
  Format::parse("q4_0").info().encode(model.weights.data(), 24, 256, {expected.data(), nullptr, nullptr}, 0);
  CHECK(out.read(out.tensor("a.weight")) == expected);

  // The report's errors are those of the decoded values.
  const auto values = decode("q4_0", expected, {}, nullptr, 24, 256);
  double errors = 0, all = 0, largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double e = double{values[i]} - model.weights[i];
    errors += e * e, all += double{model.weights[i]} * model.weights[i], largest = std::max(largest, std::fabs(e));
  }
  const auto& a =
      *std::find_if(report.tensors.begin(), report.tensors.end(), [](auto& t) { return t.name == "a.weight"; });
  CHECK(a.relative_rms() == Approx(std::sqrt(errors / all)));
  CHECK(a.max_error == largest);
  CHECK(report.relative_rms() > 0);
}

TEST_CASE("quantize: every GGUF format, from GGUF to GGUF too") {
  const Model model;
  model.quantize("f32", "floats.gguf");
  const std::vector<std::string> floats = {model / "floats.gguf"};
  for (const char* format :
       {"q4_0",    "q4_1",       "q5_0",       "q5_1",   "q8_0",   "q2_k",  "q3_k",    "q4_k",  "q5_k",
        "q6_k",    "ggml_mxfp4", "ggml_nvfp4", "iq4_nl", "iq4_xs", "iq3_s", "iq3_xxs", "iq2_s", "iq2_xs",
        "iq2_xxs", "iq1_m",      "iq1_s",      "tq2_0",  "tq1_0",  "q1_0",  "q2_0",    "f16",   "bf16"}) {
    INFO(format);
    const auto report = model.quantize(format, "a.gguf", {.replace = true});
    const bool floats_too = std::string(format).ends_with("f16");  // which take any number of columns
    CHECK(quantized(report).size() == (floats_too ? 4 : 3));
    const Gguf out = Gguf::open(model / "a.gguf");
    CHECK(out.tensor("a.weight").format == format);
    const bool few_levels = std::string(format).starts_with("iq1") || std::string(format).starts_with("tq") ||
                            std::string(format) == "q1_0" || std::string(format) == "q2_0";
    CHECK(report.relative_rms() < (few_levels ? 0.9 : 0.4));
    QuantizePolicy policy{.format = format, .replace = true};
    quantize_model(floats, model / "b.gguf", policy);
    const Gguf again = Gguf::open(model / "b.gguf");
    for (const GgufTensor& t : out.tensors()) CHECK(again.read(again.tensor(t.name)) == out.read(t));
  }
}

TEST_CASE("quantize: every packing of 4-bit integers comes back by import_weights") {
  const Model model;
  for (const char* format : {"int4_g32", "int4_g64", "int4_g128", "uint4_g32", "uint4_g64", "uint4_g128"})
    for (const Checkpoint packing :
         {Checkpoint::gptq, Checkpoint::gptq_v2, Checkpoint::awq, Checkpoint::compressed_tensors}) {
      const std::string name(to_string(packing));
      INFO(format << " " << name);
      const Format f = Format::parse(format);
      const auto report = model.quantize(format, "o.safetensors", {.packing = name, .replace = true});
      CHECK(quantized(report) == Names{"a.weight", "b.weight", "c.weight"});
      const Safetensors out = Safetensors::open(model / "o.safetensors");
      CHECK(*out.value("made") == "here");
      CHECK(*out.value("format") == "pt");
      CHECK(*out.value("quantization_config") == report.config);
      CHECK(slurp(report.config_path) == report.config + "\n");
      const bool compressed = packing == Checkpoint::compressed_tensors;
      std::vector<std::vector<std::byte>> bytes;
      bytes.reserve(4);
      const auto tensor = [&](const std::string& part) -> CheckpointTensor {
        const SafetensorsTensor* t = out.find("a." + part);
        return t ? checkpoint_tensor(*t, bytes.emplace_back(out.read(*t))) : CheckpointTensor{};
      };
      CheckpointWeight w{.packing = packing, .n = 24, .k = 256, .group = f.block()};
      w.codes = tensor(compressed ? "weight_packed" : "qweight");
      w.zeros = tensor(compressed ? "weight_zero_point" : "qzeros");
      w.scales = tensor(compressed ? "weight_scale" : "scales");
      w.g_idx = tensor("g_idx");
      CHECK(w.g_idx.bytes.empty() == (compressed || packing == Checkpoint::awq));
      if (compressed) CHECK(out.tensor("a.weight_shape").bytes == 16);
      std::vector<std::byte> data(static_cast<std::size_t>(f.stream_bytes(0, 24, 256)));
      std::vector<std::byte> scales(static_cast<std::size_t>(f.stream_bytes(1, 24, 256)));
      auto data_is = data, scales_is = scales;
      f.info().encode(model.weights.data(), 24, 256, {data.data(), scales.data(), nullptr}, 0);
      import_weights(w, f, data_is, scales_is);
      CHECK(data_is == data);
      CHECK(scales_is == scales);
      CHECK_FALSE(out.find("a.weight"));
      CHECK(out.find("odd.weight"));
    }
}

TEST_CASE("quantize: formats say whether GGUF has them, as its table of types does") {
  // For activations or without scales; and names that ggml has for other bytes.
  const std::set<std::string_view> not_weights = {"q8_1", "int8", "int32", "mxfp4", "nvfp4"};
  for (const Format f : Format::all()) {
    INFO(f.name());
    CHECK(f.info().gguf == (gguf_type(f.name()).has_value() && !not_weights.count(f.name())));
  }
}

TEST_CASE("quantize: rows with a scale and NVFP4, as compressed-tensors stores them") {
  const Model model;
  for (const char* format : {"e4m3_row", "int8_row", "nvfp4"}) {
    INFO(format);
    model.quantize(format, "o.safetensors", {.replace = true});
    const Safetensors out = Safetensors::open(model / "o.safetensors");
    const bool nvfp4 = std::string(format) == "nvfp4";
    const auto& codes = out.tensor(nvfp4 ? "a.weight_packed" : "a.weight");
    CHECK(codes.dtype == (nvfp4 ? "U8" : std::string(format) == "int8_row" ? "I8" : "F8_E4M3"));
    CHECK(codes.shape == std::vector<std::int64_t>{24, nvfp4 ? 128 : 256});
    const auto& scales = out.tensor("a.weight_scale");
    CHECK(scales.dtype == (nvfp4 ? "F8_E4M3" : "F32"));
    CHECK(scales.shape == std::vector<std::int64_t>{24, nvfp4 ? 16 : 1});
    float global = 1;
    if (nvfp4) {
      const auto bytes = out.read(out.tensor("a.weight_global_scale"));
      REQUIRE(bytes.size() == 4);
      std::memcpy(&global, bytes.data(), 4);
      float amax = 0;
      for (const float v : model.weights) amax = std::max(amax, std::fabs(v));
      CHECK(global == Approx(2688 / amax));
      global = 1 / global;
    }
    const auto values = decode(format, out.read(codes), out.read(scales), &global, 24, 256);
    double errors = 0, all = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      errors += std::pow(values[i] - model.weights[i], 2), all += std::pow(model.weights[i], 2);
    CHECK(std::sqrt(errors / all) < (nvfp4 ? 0.15 : 0.04));
  }
}

TEST_CASE("quantize: names choose") {
  const Model model;
  CHECK(quantized(model.quantize("q8_0", "1.gguf", {.only = {"*.weight"}})) ==
        Names{"a.weight", "b.weight", "c.weight", "embed_tokens.weight"});
  CHECK(quantized(model.quantize("q8_0", "2.gguf", {.only = {"[ab].weight"}, .skip = {"b*"}})) == Names{"a.weight"});
  QuantizePolicy policy{.format = "q8_0", .skip = {"a.*", "c.*"}};
  const auto plan = plan_quantization(model.input, model / "3.gguf", policy);
  CHECK(quantized(plan) == Names{"b.weight"});
  CHECK_FALSE(fs::exists(model / "3.gguf"));
  CHECK_FALSE(fs::exists(model / "3.gguf.part"));
  CHECK(model.quantize("q8_0", "3.gguf", policy).bytes_after == plan.bytes_after);
  CHECK(fs::file_size(model / "3.gguf") > plan.bytes_after);
}

TEST_CASE("quantize: the bytes do not depend on threads") {
  const Model model;
  for (const char* output : {"o.gguf", "o.safetensors"}) {
    const std::string format = output == std::string("o.gguf") ? "q4_k" : "uint4_g64";
    const auto one = model.quantize(format, output, {.threads = 1});
    const std::string bytes = slurp(model / output);
    const auto many = model.quantize(format, output, {.replace = true, .threads = 7});
    CHECK(slurp(model / output) == bytes);
    CHECK(one.relative_rms() == many.relative_rms());
  }
}

TEST_CASE("quantize: killed anywhere and resumed gives the same bytes and the same report") {
  const Model model;
  for (const char* output : {"o.gguf", "o.safetensors"}) {
    const std::string format = output == std::string("o.gguf") ? "q4_0" : "nvfp4";
    const auto whole = model.quantize(format, output, {});
    const std::string bytes = slurp(model / output);
    fs::remove(model / output);
    for (int calls = 1; calls <= 8; ++calls) {
      INFO(output << " killed at " << calls);
      killed(model, format, output, calls);
      CHECK_FALSE(fs::exists(model / output));
      if (calls == 1) {  // no tensor was done; what is there is a beginning all the same
        model.quantize(format, output, {});
      } else {
        const auto resumed = model.quantize(format, output, {.resume = true});
        CHECK(std::count_if(resumed.tensors.begin(), resumed.tensors.end(), [](auto& t) { return t.resumed; }) ==
              calls - 1);
        CHECK(resumed.relative_rms() == whole.relative_rms());
      }
      CHECK(slurp(model / output) == bytes);
      CHECK_FALSE(fs::exists(model / (output + std::string(".part")).c_str()));
      CHECK_FALSE(fs::exists(model / (output + std::string(".part.journal")).c_str()));
      fs::remove(model / output);
    }
  }
}

TEST_CASE("quantize: a damaged part is made again, a cut or strange one refused") {
  const Model model;
  model.quantize("q4_0", "o.gguf");
  const std::string bytes = slurp(model / "o.gguf"), part = model / "o.gguf.part", journal = part + ".journal";
  fs::remove(model / "o.gguf");
  const QuantizePolicy resume{.resume = true};
  contains(message(model, "q4_0", "o.gguf", resume), "does not exist");

  killed(model, "q4_0", "o.gguf", 7);
  const std::string part_was = slurp(part), journal_was = slurp(journal);
  const auto restore = [&](const std::string& p, const std::string& j) {
    std::ofstream(part, std::ios::binary) << p;
    std::ofstream(journal, std::ios::binary) << j;
  };
  const Gguf layout = [&] {
    std::ofstream(model / "layout", std::ios::binary) << bytes;
    return Gguf::open(model / "layout");
  }();

  std::string damaged = part_was;  // a bit of every tensor
  for (const GgufTensor& t : layout.tensors()) damaged[static_cast<std::size_t>(t.offset + t.bytes / 2)] ^= 4;
  restore(damaged, journal_was);
  const auto again = model.quantize("q4_0", "o.gguf", resume);
  CHECK(std::none_of(again.tensors.begin(), again.tensors.end(), [](auto& t) { return t.resumed; }));
  CHECK(slurp(model / "o.gguf") == bytes);
  fs::remove(model / "o.gguf");

  for (std::size_t cut = journal_was.find('\n') + 1; cut < journal_was.size(); cut += 37) {
    restore(part_was, journal_was.substr(0, cut));
    model.quantize("q4_0", "o.gguf", resume);
    CHECK(slurp(model / "o.gguf") == bytes);
    fs::remove(model / "o.gguf");
  }

  restore(part_was.substr(0, part_was.size() - 1), journal_was);
  contains(message(model, "q4_0", "o.gguf", resume), "cut");
  std::string header = part_was;
  header[20] ^= 1;
  restore(header, journal_was);
  contains(message(model, "q4_0", "o.gguf", resume), "header");
  restore(part_was, "");
  contains(message(model, "q4_0", "o.gguf", resume), "damaged");
  restore(part_was, "[1]\n" + journal_was);
  contains(message(model, "q4_0", "o.gguf", resume), "damaged");
  fs::remove(journal);
  contains(message(model, "q4_0", "o.gguf", resume), "No such file");
  restore(part_was, journal_was);
  QuantizePolicy other = resume;
  other.encoder = "amax7";
  contains(message(model, "q4_0", "o.gguf", other), "amax7");
  fs::last_write_time(model.input[0], fs::file_time_type::clock::now() + std::chrono::seconds(5));
  contains(message(model, "q4_0", "o.gguf", resume), "changed since");
  CHECK(slurp(part) == part_was);
}

TEST_CASE("quantize: shards are one model") {
  const Model model;
  const Safetensors in = Safetensors::open(model.input[0]);
  std::vector<std::string> shards;
  std::string map;
  for (const char* names : {"abc", "neos"}) {
    shards.push_back(model / (std::string("shard-") + names + ".safetensors").c_str());
    std::vector<SafetensorsInfo> infos;
    for (const auto& t : in.tensors())
      if (std::strchr(names, t.name[0])) infos.push_back({t.name, std::string(t.dtype), t.shape});
    SafetensorsWriter writer(shards.back(), infos);
    for (const auto& t : infos) {
      writer.write(t.name, in.read(in.tensor(t.name)));
      map += (map.empty() ? "" : ",") + ("\"" + t.name + "\":\"shard-" + names + ".safetensors\"");
    }
    writer.finish();
  }
  const QuantizePolicy policy{.format = "int8_row"};
  const auto index = [&](const std::string& text) {
    std::ofstream(model / "model.safetensors.index.json") << text;
    return std::vector<std::string>{model / "model.safetensors.index.json"};
  };
  quantize_model(shards, model / "1.safetensors", policy);
  quantize_model(index("{\"weight_map\":{" + map + "}}"), model / "2.safetensors", policy);
  CHECK(slurp(model / "1.safetensors") == slurp(model / "2.safetensors"));
  const auto refused = [&](const std::string& text, const char* part) {
    const auto inputs = index(text);
    contains(refusal([&] { quantize_model(inputs, model / "3.safetensors", policy); }).what(), part);
  };
  refused("{", "weight_map");
  refused("[]", "weight_map");
  refused("{\"weight_map\":{}}", "weight_map");
  refused("{\"weight_map\":{\"a\":1}}", "name of a file");
  refused("{\"weight_map\":{\"a\":\"../x\"}}", "name of a file");
  refused("{\"weight_map\":{\"a\":\"none.safetensors\"}}", "none.safetensors");
  refused("{\"weight_map\":{\"q\":\"shard-abc.safetensors\"}}", "with that tensor");
  shards[1] = shards[0];
  contains(refusal([&] { quantize_model(shards, model / "3.safetensors", policy); }).what(), "two of the files");
}

TEST_CASE("quantize: what cannot be done is named, and leaves nothing") {
  const Model model;
  contains(message(model, "q9", "o.gguf", {}), "q9");
  contains(message(model, "int4_g128", "o.gguf", {}), "q4_0");
  contains(message(model, "q8_1", "o.gguf", {}), "format");
  contains(message(model, "q4_0", "o.safetensors", {}), "int4_g128");
  contains(message(model, "q4_0", "o.bin", {}), ".gguf or .safetensors");
  contains(message(model, "q4_0", "o.gguf", {.encoder = "x"}), "amax7");
  contains(message(model, "q4_0", "o.gguf", {.packing = "gptq"}), "packing");
  contains(message(model, "int4_g32", "o.safetensors", {.packing = "x"}), "gptq_v2");
  contains(message(model, "q4_0", "o.gguf", {.only = {"x*"}}), "only");
  contains(message(model, "q4_0", "o.gguf", {.skip = {"x*"}}), "skip");
  contains(message(model, "q4_0", "o.gguf", {.only = {"steps"}}), "at least one");
  contains(message(model, "q4_0", "none/o.gguf", {}), "No such file");
  CHECK_THROWS_AS(quantize_model({}, model / "o.gguf", {.format = "q4_0"}), Error);
  contains(message(model, "int8_row", "in.safetensors", {.replace = true}), "choose another");
  std::ofstream(model / "o.gguf") << "mine";
  contains(message(model, "q4_0", "o.gguf", {}), "exists");
  CHECK(slurp(model / "o.gguf") == "mine");
  std::ofstream(model / "quantization_config.json") << "mine";
  contains(message(model, "int8_row", "o.safetensors", {}), "exists");
  for (const auto& entry : fs::directory_iterator(model.folder))
    CHECK(entry.path().string().find(".part") == std::string::npos);
}

TEST_CASE("quantize: weights that are no finite numbers are refused") {
  for (const float bad : {NAN, INFINITY, -INFINITY, 1e38f}) {
    const Model model(bad);
    const Error e = refusal([&] { model.quantize("q4_0", "o.gguf"); });
    contains(e.what(), "tensor 'a.weight'");
    CHECK_FALSE(fs::exists(model / "o.gguf"));
    CHECK_FALSE(fs::exists(model / "o.gguf.part"));
    CHECK(quantized(model.quantize("q4_0", "o.gguf", {.skip = {"a.weight"}})).size() == 2);
  }
}

TEST_CASE("quantize: a quantizer of one's own, which reorders columns") {
  // Reverses the columns and rounds to nearest.
  class Reversed : public LayerQuantizer {
   public:
    struct Layer : QuantizedLayer {
      std::vector<std::int32_t> columns;
      Format format = Format::parse("int4_g32");
      std::span<const std::int32_t> order() const override { return columns; }
      void encode(std::int64_t, std::int64_t count, const float* w, MutableOperand to) const override {
        const std::size_t k = columns.size();
        std::vector<float> row(static_cast<std::size_t>(count) * k);
        for (std::size_t i = 0; i < row.size(); ++i) row[i] = w[i - i % k + static_cast<std::size_t>(columns[i % k])];
        format.info().encode(row.data(), count, static_cast<std::int64_t>(k), to, 0);
      }
    };
    Format format() const override { return Format::parse("int4_g32"); }
    bool reorders() const override { return true; }
    std::string identity() const override { return "reversed"; }
    std::unique_ptr<QuantizedLayer> begin(const LayerWeights& w) const override {
      auto layer = std::make_unique<Layer>();
      for (std::int64_t i = w.cols; i-- > 0;) layer->columns.push_back(static_cast<std::int32_t>(i));
      return layer;
    }
  };
  const Model model;
  const Reversed reversed;
  const auto plain = model.quantize("int4_g32", "p.safetensors");
  for (const char* packing : {"gptq", "compressed_tensors"}) {
    const auto report =
        model.quantize("", "o.safetensors", {.packing = packing, .quantizer = &reversed, .replace = true});
    CHECK(report.relative_rms() == Approx(plain.relative_rms()));  // groups are the same ones
    const Safetensors out = Safetensors::open(model / "o.safetensors");
    const auto bytes = out.read(out.tensor(packing == std::string("gptq") ? "a.g_idx" : "a.weight_g_idx"));
    std::int32_t first = 0;
    std::memcpy(&first, bytes.data(), 4);
    CHECK(first == 256 / 32 - 1);
  }
  CHECK_THROWS_AS(model.quantize("", "x.safetensors", {.packing = "awq", .quantizer = &reversed}), Error);
}
