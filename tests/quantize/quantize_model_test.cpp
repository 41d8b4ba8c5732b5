// SPDX-License-Identifier: Apache-2.0
// Whole files: what is chosen, what lies where, and what is left by a run that was stopped.
#include <tilewright/error.h>
#include <tilewright/gguf.h>
#include <tilewright/import.h>
#include <tilewright/quantize_model.h>
#include <tilewright/safetensors.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "support/catch.h"
#include "support/refusal.h"

using namespace tilewright;
namespace fs = std::filesystem;

namespace {

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A folder with a small model: three layers in three float types, an embedding, a norm, a bias, a counter.
struct Model {
  fs::path folder = fs::temp_directory_path() / ("tilewright-quantize-" + std::to_string(::getpid()));
  std::vector<std::string> input = {(folder / "in.safetensors").string()};
  std::vector<float> weights = {};  // of a.weight

  explicit Model(float first = 0.5f) {
    fs::create_directories(folder);
    const std::vector<SafetensorsInfo> tensors = {
        {"a.weight", "F32", {24, 256}},  {"a.bias", "F32", {24}},       {"b.weight", "BF16", {16, 512}},
        {"c.weight", "F16", {8, 256}},   {"norm.weight", "F32", {256}}, {"embed_tokens.weight", "F16", {32, 256}},
        {"odd.weight", "F32", {3, 100}}, {"steps", "I64", {2}}};
    SafetensorsWriter writer(input[0], tensors, {{"made", "here"}});
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (const SafetensorsInfo& t : tensors) {
      const std::uint64_t size = writer.bytes(t.name);
      std::vector<std::byte> bytes(static_cast<std::size_t>(size));
      if (t.dtype == "F32") {
        std::vector<float> values(bytes.size() / 4);
        for (float& v : values) v = normal(random);
        values[0] = first;
        std::memcpy(bytes.data(), values.data(), bytes.size());
        if (t.name == "a.weight") weights = values;
      } else {
        for (std::size_t i = 0; i < bytes.size(); i += 2) {  // sixteen bits of finite floats near one
          const std::uint16_t bits = static_cast<std::uint16_t>(0x3c00u + random() % 512u);
          std::memcpy(&bytes[i], &bits, 2);
        }
      }
      writer.write(t.name, bytes);
    }
    writer.finish();
  }
  ~Model() { fs::remove_all(folder); }
  std::string operator/(const char* name) const { return (folder / name).string(); }

  QuantizeReport quantize(const std::string& format, const char* output, QuantizePolicy policy = {}) const {
    policy.format = format;
    return quantize_model(input, *this / output, policy);
  }
};

std::vector<std::string> quantized(const QuantizeReport& report) {
  std::vector<std::string> names;
  for (const TensorReport& t : report.tensors)
    if (t.quantized) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

std::vector<float> decode(const char* format, const std::vector<std::byte>& data, const std::vector<std::byte>& scales,
                          const float* global, std::int64_t rows, std::int64_t cols) {
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  Format::parse(format).info().decode({data.data(), scales.data(), global}, rows, cols, values.data());
  return values;
}

// A process that is killed when its work has come this far.
void killed(const Model& model, const std::string& format, const char* output, int calls) {
  const pid_t child = ::fork();
  if (child == 0) {
    QuantizePolicy policy;
    policy.sync_bytes = 1;
    policy.threads = 1;
    policy.progress = [&](std::string_view, int, int) {
      if (--calls == 0) ::kill(::getpid(), SIGKILL);
    };
    model.quantize(format, output, policy);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
}

std::string message(const Model& model, const std::string& format, const char* output, const QuantizePolicy& policy) {
  return refusal([&] { model.quantize(format, output, policy); }).what();
}
void contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace

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

namespace {

// Inputs of the layers a, b and c of a Model, in all the ways in which they may be given.
struct Calibration {
  fs::path folder;
  std::vector<float> a, c;              // [96, 256] each
  std::vector<std::uint16_t> b;         // [80, 512], bf16
  std::vector<std::string> paths = {};  // all of them

  explicit Calibration(const Model& model) : folder(model.folder / "inputs") {
    fs::create_directories(folder / "nested");
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < 96 * 256; ++i) {
      const float size = i % 256 % 7 ? 1.0f : 8.0f;
      a.push_back(normal(random) * size), c.push_back(normal(random) + (i % 256 == 3 ? 20.0f : 0.0f));
    }
    for (std::size_t i = 0; i < 80 * 512; ++i)
      b.push_back(static_cast<std::uint16_t>(0x3c00u + random() % 1024u + (random() % 2 ? 0x8000u : 0u)));
    // a: one .npy of doubles for the first 32 rows, singles in three dimensions for the others.
    std::vector<double> wide(a.begin(), a.begin() + 32 * 256);
    npy(folder / "a.npy", "<f8", "32, 256", std::as_bytes(std::span(wide)));
    npy(folder / "nested" / "a.weight.npy", "<f4", "8, 8, 256", std::as_bytes(std::span(a).subspan(32 * 256)));
    SafetensorsWriter writer((folder / "bc.safetensors").string(),
                             {{"b", "BF16", {80, 512}}, {"c.weight", "F32", {96, 256}}, {"ids", "I64", {2}}});
    writer.write("b", std::as_bytes(std::span(b)));
    writer.write("c.weight", std::as_bytes(std::span(c)));
    writer.write("ids", std::vector<std::byte>(16));
    writer.finish();
    std::ofstream(folder / "README.txt") << "no array";
    paths = {folder.string(), (folder / "nested").string()};
  }
  static void npy(const fs::path& path, const char* type, const char* shape, std::span<const std::byte> bytes) {
    std::string header = std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
    header.resize(118 - 1, ' ');
    header += '\n';
    std::ofstream file(path, std::ios::binary);
    file << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header;
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  Hessian of_a() const {  // as the files have them
    Hessian h(256);
    h.add(Format::parse("f32"), a.data(), 32, 256, 1);
    h.add(Format::parse("f32"), a.data() + 32 * 256, 64, 256, 1);
    return h;
  }
};

const TensorReport& entry(const QuantizeReport& report, const char* name) {
  return *std::find_if(report.tensors.begin(), report.tensors.end(), [&](auto& t) { return t.name == name; });
}

}  // namespace

TEST_CASE("quantize: a device needs an engine") {
  PostTraining training{.format = Format::parse("int4_g128")};
  training.device = reinterpret_cast<const Device*>(&training);  // not looked at
  try {
    post_training(training);
    FAIL("not refused");
  } catch (const Error& e) {
    CHECK(e.field() == "engine");
  }
}

TEST_CASE("quantize: layers get the streams that gptq, awq and rounding to nearest give for their inputs") {
  const Model model;
  const Calibration inputs(model);
  const LinearWeight layer{model.weights, 24, 256, "a.weight"};
  for (const char* format : {"int4_g64", "uint4_g128"})
    for (const std::string method : {"rtn", "gptq", "gptq static", "gptq order", "awq", "awq clip"}) {
      INFO(format << " " << method);
      PostTraining training{.format = Format::parse(format), .method = method.substr(0, method.find(' '))};
      training.calibration = inputs.paths;
      training.gptq = {.act_order = method.ends_with("static") || method.ends_with("order"),
                       .static_groups = method.ends_with("static"),
                       .damping = 0.02};
      training.awq.clip = method.ends_with("clip");
      const QuantizeTarget target{training.format, 0, 0, 1};
      const Hessian h = inputs.of_a();
      const QuantizedLinear q = training.method == "rtn"   ? round_to_nearest(layer, h, target)
                                : training.method == "awq" ? awq(layer, h, target, training.awq)
                                                           : gptq(layer, h, target, training.gptq);
      const auto quantizer = post_training(training);
      const auto report = model.quantize("", "o.safetensors", {.quantizer = quantizer.get(), .replace = true});
      CHECK(quantized(report) == Names{"a.weight", "b.weight", "c.weight"});
      const TensorReport& a = entry(report, "a.weight");
      CHECK(a.output.method == training.method);
      CHECK(a.output.rows == 96);
      CHECK(a.output.error == q.error);
      CHECK(a.output.energy == q.energy);
      CHECK(entry(report, "b.weight").output.rows == 80);

      const Safetensors out = Safetensors::open(model / "o.safetensors");
      CheckpointWeight w{.packing = Checkpoint::compressed_tensors, .n = 24, .k = 256, .group = q.format.block()};
      std::vector<std::vector<std::byte>> bytes;
      bytes.reserve(4);
      const auto tensor = [&](const char* name) -> CheckpointTensor {
        const SafetensorsTensor* t = out.find(name);
        return t ? checkpoint_tensor(*t, bytes.emplace_back(out.read(*t))) : CheckpointTensor{};
      };
      w.codes = tensor("a.weight_packed"), w.zeros = tensor("a.weight_zero_point");
      w.scales = tensor("a.weight_scale"), w.g_idx = tensor("a.weight_g_idx");
      std::vector<std::byte> data(q.data.size()), scales(q.scales.size());
      import_weights(w, q.format, data, scales);
      CHECK(data == q.data);
      CHECK(scales == q.scales);
      CHECK(import_order(w) == q.order);
      CHECK(q.order.empty() != (method == "gptq order"));

      // The report's errors are those of what is stored, in the columns and the sizes of the weights.
      const SafetensorsTensor* pre = out.find("a.pre_quant_scale");
      REQUIRE((pre != nullptr) == (training.method == "awq"));
      std::vector<float> pre_quant_scale(256, 1.0f);
      if (pre) {
        CHECK(pre->dtype == "F32");
        CHECK(pre->shape == std::vector<std::int64_t>{256});
        std::memcpy(pre_quant_scale.data(), out.read(*pre).data(), 4 * 256);
        CHECK(std::any_of(pre_quant_scale.begin(), pre_quant_scale.end(), [](float s) { return s != 1; }));
      }
      const auto values = decode(format, data, scales, nullptr, 24, 256);
      double errors = 0, all = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t column = q.order.empty() ? i % 256 : static_cast<std::size_t>(q.order[i % 256]);
        const double weight = model.weights[i - i % 256 + column];
        errors += std::pow(static_cast<double>(values[i]) * pre_quant_scale[column] - weight, 2);
        all += weight * weight;
      }
      CHECK(a.relative_rms() == Approx(std::sqrt(errors / all)).epsilon(1e-5));
      CHECK(a.relative_rms() < 0.3);
    }
}

TEST_CASE("quantize: GPTQ killed anywhere and resumed, by any number of threads") {
  const Model model;
  const Calibration inputs(model);
  PostTraining training{.format = Format::parse("int4_g32"), .calibration = inputs.paths, .gptq = {.act_order = true}};
  const auto quantizer = post_training(training);
  const QuantizePolicy policy{.quantizer = quantizer.get(), .threads = 3, .sync_bytes = 1};
  const auto whole = model.quantize("", "o.safetensors", policy);
  const std::string bytes = slurp(model / "o.safetensors");
  int calls = 0;
  for (bool finished = false; !finished;) {
    fs::remove(model / "o.safetensors");
    QuantizePolicy stopped = policy;
    int left = ++calls;
    stopped.progress = [&](std::string_view, int, int) {
      if (--left == 0) throw std::runtime_error("stopped");
    };
    try {
      model.quantize("", "o.safetensors", stopped);
      finished = true;
    } catch (const std::runtime_error&) {
      if (!fs::exists(model / "o.safetensors.part")) continue;  // nothing was done
      const auto resumed =
          model.quantize("", "o.safetensors", {.quantizer = quantizer.get(), .resume = true, .threads = 1});
      for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
        CHECK(resumed.tensors[i].output.method == whole.tensors[i].output.method);
        CHECK(resumed.tensors[i].output.rows == whole.tensors[i].output.rows);
        CHECK(resumed.tensors[i].output.error == whole.tensors[i].output.error);
        CHECK(resumed.tensors[i].output.relative() == whole.tensors[i].output.relative());
      }
    }
    CHECK(slurp(model / "o.safetensors") == bytes);
  }
  CHECK(calls > 12);  // also while a layer is calibrated
  // Another damping, or other calibration data, is other work.
  fs::remove(model / "o.safetensors");
  QuantizePolicy stopped = policy;
  stopped.progress = [&](std::string_view what, int, int) {
    if (what.find("b.weight") != what.npos) throw std::runtime_error("stopped");
  };
  CHECK_THROWS_AS(model.quantize("", "o.safetensors", stopped), std::runtime_error);
  PostTraining other = training;
  other.gptq.damping = 0.5;
  contains(refusal([&] {
             model.quantize("", "o.safetensors", {.quantizer = post_training(other).get(), .resume = true});
           }).what(),
           "damping=0.01");
  fs::last_write_time(inputs.folder / "a.npy", fs::file_time_type::clock::now() + std::chrono::seconds(5));
  contains(refusal([&] {
             model.quantize("", "o.safetensors", {.quantizer = post_training(training).get(), .resume = true});
           }).what(),
           "as it was begun");
}

TEST_CASE("quantize: layers without calibration data, and data that are not theirs") {
  const Model model;
  const Calibration inputs(model);
  const std::string file = (inputs.folder / "bc.safetensors").string();
  PostTraining training{.format = Format::parse("uint4_g32"), .calibration = {file}};
  const auto run = [&](const PostTraining& t) {
    const auto quantizer = post_training(t);
    return model.quantize("", "o.safetensors", {.quantizer = quantizer.get(), .replace = true});
  };
  const auto refused = [&](const PostTraining& t, const char* part) {
    const std::string what = refusal([&] { run(t); }).what();
    INFO(what);
    contains(what, part);
    CHECK_FALSE(fs::exists(model / "o.safetensors"));
    CHECK_FALSE(fs::exists(model / "o.safetensors.part"));
  };
  refused(training, "calibration of 'a.weight'");
  refused(training, "b, c");  // what there is
  const auto with = [&](const char* name, const char* type, const char* shape, std::size_t bytes) {
    Calibration::npy(inputs.folder / name, type, shape, std::vector<std::byte>(bytes));
    PostTraining t = training;
    t.calibration.push_back((inputs.folder / name).string());
    return t;
  };
  refused(with("a.npy", "<f4", "2, 128", 1024), "[2, 128]");
  refused(with("a.npy", "<f4", "0, 256", 0), "calibration of 'a.weight'");
  std::vector<float> bad(512, 1.0f);
  bad[300] = NAN;
  PostTraining t = with("a.npy", "<f4", "2, 256", 2048);
  Calibration::npy(inputs.folder / "a.npy", "<f4", "2, 256", std::as_bytes(std::span(bad)));
  refused(t, "a.npy: x[1, 44]");
  std::ofstream(inputs.folder / "a.npy") << "no array";
  refused(t, "a.npy");
  t.calibration = {(inputs.folder / "README.txt").string()};
  refused(t, "must be a folder");
  t.calibration = {(inputs.folder / "none.npy").string()};
  refused(t, "none.npy");
  fs::create_directory(inputs.folder / "empty");
  t.calibration = {(inputs.folder / "empty").string()};
  refused(t, "at least one array");
  t.calibration = {};
  refused(t, "at least one array");
  t = training;
  t.method = "best";
  refused(t, "gptq, awq or rtn");
  t.method = "gptq", t.gptq.damping = 2;
  refused(t, "damping");
  t.method = "awq", t.awq.grid = 0;
  refused(t, "grid");
  t = training, t.encoder = "amax7";
  refused(t, "encoder");
  t = training, t.format = Format::parse("nvfp4");
  refused(t, "gptq format");

  training.fallback = true;
  training.method = "awq";
  const auto report = run(training);
  CHECK(entry(report, "a.weight").output.method.empty());
  CHECK(entry(report, "b.weight").output.method == "awq");
  const auto plain = model.quantize("uint4_g32", "p.safetensors");
  const Safetensors out = Safetensors::open(model / "o.safetensors"),
                    rounded = Safetensors::open(model / "p.safetensors");
  CHECK(out.read(out.tensor("a.weight_packed")) == rounded.read(rounded.tensor("a.weight_packed")));
  const auto ones = out.read(out.tensor("a.pre_quant_scale"));
  for (std::size_t i = 0; i < 256; ++i) {
    float one = 0;
    std::memcpy(&one, ones.data() + 4 * i, 4);
    REQUIRE(one == 1);
  }
}

TEST_CASE("quantize: calibration files that change while the model is quantized") {
  const Model model;
  const Calibration inputs(model);
  const PostTraining training{.format = Format::parse("int4_g32"), .calibration = inputs.paths};
  const auto quantizer = post_training(training);
  Calibration::npy(inputs.folder / "a.npy", "<f4", "16, 256", std::vector<std::byte>(16 * 256 * 4));
  contains(refusal([&] { model.quantize("", "o.safetensors", {.quantizer = quantizer.get()}); }).what(), "changed");
}

TEST_CASE("quantize: importance from arrays and from an imatrix") {
  const Model model;
  const fs::path folder = model.folder / "importance";
  fs::create_directories(folder);
  std::mt19937 random(8);
  std::vector<float> a, b, c;
  for (int i = 0; i < 512; ++i) {
    const float v = std::exp2(static_cast<float>(random() % 16));
    if (i < 256) a.push_back(v), c.push_back(i % 3 ? 1.0f : 64.0f);
    b.push_back(i % 5 ? v : 0);
  }
  const std::vector<double> wide(a.begin(), a.end());
  Calibration::npy(folder / "a.npy", "<f8", "256,", std::as_bytes(std::span(wide)));
  SafetensorsWriter writer((folder / "b.safetensors").string(), {{"b.weight", "F32", {1, 512}}, {"ids", "I64", {1}}});
  writer.write("b.weight", std::as_bytes(std::span(b)));
  writer.write("ids", std::vector<std::byte>(8));
  writer.finish();
  const auto imatrix = [&](const std::string& name, std::vector<float> sums, std::vector<float> counts) {
    const auto count = static_cast<std::int64_t>(counts.size());
    const std::vector<GgufInfo> tensors = {
        {"c.weight.in_sum2", {static_cast<std::int64_t>(sums.size())}, *gguf_type("f32")},
        {"c.weight.counts", {count}, *gguf_type("f32")}};
    const std::vector<GgufField> fields = {GgufField::u32("imatrix.chunk_count", 1)};
    GgufWriter gguf((folder / name).string(), tensors, fields);
    gguf.write("c.weight.in_sum2", std::as_bytes(std::span(sums)));
    gguf.write("c.weight.counts", std::as_bytes(std::span(counts)));
    gguf.finish();
    return (folder / name).string();
  };
  std::vector<float> sums = c;
  for (float& v : sums) v *= 4;
  const std::vector<std::string> files = {(folder / "a.npy").string(), (folder / "b.safetensors").string(),
                                          imatrix("c.gguf", sums, {4})};
  for (const char* format : {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq3_s", "iq2_xs", "iq2_xxs", "iq1_s", "iq1_m"}) {
    INFO(format);
    const Format f = Format::parse(format);
    const auto quantizer = importance_weighted(f, files);
    const auto report = model.quantize(format, "o.gguf", {.quantizer = quantizer.get(), .replace = true, .threads = 3});
    CHECK(quantized(report) == Names{"a.weight", "b.weight", "c.weight"});
    const Gguf out = Gguf::open(model / "o.gguf");
    std::vector<std::byte> expected(static_cast<std::size_t>(f.stream_bytes(0, 24, 256)));
    f.info().encode_weighted(model.weights.data(), 24, 256, a.data(), {expected.data(), nullptr, nullptr});
    CHECK(out.read(out.tensor("a.weight")) == expected);
    const Safetensors in = Safetensors::open(model.input[0]);
    std::vector<float> w(16 * 512);
    const auto bytes_b = in.read(in.tensor("b.weight")), bytes_c = in.read(in.tensor("c.weight"));
    Format::parse("bf16").info().decode({bytes_b.data(), nullptr, nullptr}, 16, 512, w.data());
    expected.resize(static_cast<std::size_t>(f.stream_bytes(0, 16, 512)));
    f.info().encode_weighted(w.data(), 16, 512, b.data(), {expected.data(), nullptr, nullptr});
    CHECK(out.read(out.tensor("b.weight")) == expected);
    Format::parse("f16").info().decode({bytes_c.data(), nullptr, nullptr}, 8, 256, w.data());
    expected.resize(static_cast<std::size_t>(f.stream_bytes(0, 8, 256)));
    f.info().encode_weighted(w.data(), 8, 256, c.data(), {expected.data(), nullptr, nullptr});
    CHECK(out.read(out.tensor("c.weight")) == expected);
  }
  // Without importance for a layer: an error before any work, or encoder "ggml".
  fs::remove(model / "o.gguf");
  const Format q3 = Format::parse("q3_k");
  const auto some = importance_weighted(q3, std::vector{files[1]});
  contains(message(model, "q3_k", "o.gguf", {.quantizer = some.get()}), "importance of 'a.weight'");
  CHECK_FALSE(fs::exists(model / "o.gguf.part"));
  const auto rest = importance_weighted(q3, std::vector{files[1]}, true);
  model.quantize("q3_k", "o.gguf", {.quantizer = rest.get()});
  model.quantize("q3_k", "p.gguf", {.encoder = "ggml"});
  const Gguf out = Gguf::open(model / "o.gguf"), plain = Gguf::open(model / "p.gguf");
  CHECK(out.read(out.tensor("a.weight")) == plain.read(plain.tensor("a.weight")));
  CHECK(out.read(out.tensor("b.weight")) != plain.read(plain.tensor("b.weight")));
  const auto by_plain = importance_weighted(Format::parse("iq2_xs"), std::vector{files[1]}, true);
  model.quantize("iq2_xs", "o.gguf", {.quantizer = by_plain.get(), .replace = true});
  model.quantize("iq2_xs", "p.gguf", {.encoder = "plain", .replace = true});
  const Gguf ours = Gguf::open(model / "o.gguf"), without = Gguf::open(model / "p.gguf");
  CHECK(ours.read(ours.tensor("a.weight")) == without.read(without.tensor("a.weight")));
  CHECK(ours.read(ours.tensor("b.weight")) != without.read(without.tensor("b.weight")));
  // What files may not say.
  const auto refused = [&](const char* format, std::vector<std::string> paths, const char* part) {
    const std::string what = refusal([&] {
                               const auto quantizer = importance_weighted(Format::parse(format), paths);
                               model.quantize("", "r.gguf", {.only = {"[ab].weight"}, .quantizer = quantizer.get()});
                             }).what();
    contains(what, part);
  };
  refused("q4_0", files, "q2_k, q3_k, q4_k, q5_k, q6_k");
  refused("q3_k", {}, "at least one");
  refused("q3_k", {model.input[0] + ".bin"}, "must end in");
  refused("q3_k", {(folder / "none.npy").string()}, "none.npy");
  refused("q3_k", {files[0], files[0], files[1]}, "given once");
  refused("q3_k", {imatrix("d.gguf", std::vector<float>(512, 1.0f), {1, 1})}, "one count");
  for (const float bad : {-1.0f, NAN, INFINITY, 1e16f}) {
    std::vector<float> values = a;
    values[7] = bad;
    Calibration::npy(folder / "a.npy", "<f4", "256,", std::as_bytes(std::span(values)));
    refused("q3_k", files, "importance of 'a' [7]");
  }
  Calibration::npy(folder / "a.npy", "<f4", "128,", std::as_bytes(std::span(a).first(128)));
  refused("q3_k", files, "one per column");
  Calibration::npy(folder / "a.npy", "<f4", "2, 128", std::as_bytes(std::span(a)));
  refused("q3_k", files, "one for each column");
  Calibration::npy(folder / "a.npy", "<f4", "0,", {});
  refused("q3_k", files, "one for each column");
}
