// SPDX-License-Identifier: Apache-2.0
// Whole files by GPTQ, AWQ or importance: layers get what their calibration data ask for.
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
#include <random>
#include <span>

#include "quantize/small_model.h"
#include "support/catch.h"
#include "support/refusal.h"

using namespace tilewright;
using namespace tilewright::test;

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
