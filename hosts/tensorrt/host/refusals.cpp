// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/host/refusals.h"

#include <cstdio>
#include <random>
#include <utility>

#include "hosts/tensorrt/host/cases.h"
#include "hosts/tensorrt/host/session.h"

namespace tilewright::tensorrt::host {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;
using nvinfer1::TensorRTPhase;

class Judge {
 public:
  Judge(const Library& library, Logger& logger) : library_(library), logger_(logger) {}

  // createPlugin() must return null and give `reason`.
  void refuses(const std::string& plugin, const char* what, OwnedFields fields, TensorRTPhase phase,
               const std::string& reason) {
    const PluginHandle made(library_.creator(plugin).createPlugin("node", fields.collection(), phase));
    note(what, !made, reason);
  }
  void refuses_raw(const char* what, std::vector<PluginField> fields, const std::string& reason) {
    const nvinfer1::PluginFieldCollection collection = {static_cast<std::int32_t>(fields.size()), fields.data()};
    const PluginHandle made(
        library_.creator("TilewrightGemm").createPlugin("node", &collection, TensorRTPhase::kBUILD));
    note(what, !made, reason);
  }
  void note(const char* what, bool refused, const std::string& reason) {
    const std::string said = logger_.take_errors();
    if (refused && said.find(reason) != std::string::npos) {
      ++counts.passed;
      return;
    }
    ++counts.failed;
    std::printf("  failed: %s: %s; says '%s'\n", what, refused ? "is refused" : "is accepted", said.c_str());
  }
  const Library& library() const { return library_; }
  Logger& logger() const { return logger_; }
  Counts counts;

 private:
  const Library& library_;
  Logger& logger_;
};

void set(OwnedFields& fields, const std::string& name, OwnedFields::Value value) {
  for (OwnedFields::Field& f : fields.fields())
    if (f.name == name) {
      f.value = std::move(value);
      return;
    }
  fields.fields().push_back({name, std::move(value)});
}

void nodes(Judge& judge, const std::string& target) {
  const auto w4a8 = [&](const char* what, OwnedFields::Value k, OwnedFields::Value n, const char* reason) {
    judge.refuses("W4A8GemmPlugin", what,
                  OwnedFields({{"in_features", std::move(k)}, {"out_features", std::move(n)}, {"target", target}}),
                  TensorRTPhase::kBUILD, reason);
  };
  w4a8("in_features that is no multiple of 16", 100, 64, "in_features must be a positive multiple of 16 (got 100)");
  w4a8("negative out_features", 128, -64, "out_features must be a positive multiple of 1 (got -64)");
  w4a8("in_features as text", std::string("many"), 64, "in_features must be one integer");
  judge.refuses("W4A8GemmPlugin", "no in_features", OwnedFields({{"out_features", 64}, {"target", target}}),
                TensorRTPhase::kBUILD, "in_features is required");
  judge.refuses("W4A8GemmPlugin", "weights of another size",
                OwnedFields({{"in_features", 128},
                             {"out_features", 64},
                             {"weight_packed", std::vector<std::byte>(100)},
                             {"target", target}}),
                TensorRTPhase::kBUILD, "weight_packed must be 4096 bytes");
  judge.refuses("TilewrightConv", "a gemm",
                OwnedFields({{"problem", std::string("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64")}, {"target", target}}),
                TensorRTPhase::kBUILD, "problem must be a conv");
  judge.refuses("TilewrightConv", "a cache",
                OwnedFields({{"problem", std::string("conv x=bf16 w=bf16 y=bf16 n=1 c=64 in=4x8x8 k=64 kernel=3x3x3 "
                                                     "pad=0x1x1 cache=2")},
                             {"target", target}}),
                TensorRTPhase::kBUILD, "cache is not supported by TilewrightConv");
  judge.refuses("TilewrightGemm", "no fields", OwnedFields(), TensorRTPhase::kBUILD, "problem is required");

  const std::string text = "gemm x=bf16 w=bf16 y=bf16 n=64 k=64";
  const auto problem = [&](std::int32_t length) {
    return PluginField("problem", text.data(), PluginFieldType::kCHAR, length);
  };
  const auto size = static_cast<std::int32_t>(text.size());
  const PluginField on("target", target.data(), PluginFieldType::kCHAR, static_cast<std::int32_t>(target.size()));
  judge.refuses_raw("a field of negative length", {problem(-5), on}, "problem must have a value");
  judge.refuses_raw("a field without a value", {{"problem", nullptr, PluginFieldType::kCHAR, 20}, on},
                    "problem must have a value");
  judge.refuses_raw("a field without a name", {{nullptr, text.data(), PluginFieldType::kCHAR, size}, on},
                    "problem is required");
  judge.refuses_raw("weights of a type without a size",
                    {problem(size), on, {"w", text.data(), PluginFieldType::kDIMS, 1}}, "w must be a tensor of INT8");
  judge.refuses_raw("a cut problem", {problem(20), on}, "problem must be words of the form field=value");
}

void engines(Judge& judge, const std::string& target) {
  const Case c = all_cases(target).front();
  Filled data = filled(c.problem(c.rows_per), 1);
  const Engine good = build(judge.library(), judge.logger(), c, data);
  const auto changed = [&](const char* what, const char* field, OwnedFields::Value value, const char* reason) {
    OwnedFields fields = good.fields;
    set(fields, field, std::move(value));
    judge.refuses(c.plugin, what, std::move(fields), TensorRTPhase::kRUNTIME, reason);
  };
  changed("an engine of another version", "library", std::string("0.0.1 layout 1"), "build the engine again");
  changed("an engine for an unknown GPU", "target", std::string("sm_12"), "sm_12");
  changed("another operation", "problem", std::string("cast x=f16 y=q8_1 rows=1 cols=64"), "build the engine again");
  changed("weights that are cut", "w", std::vector<std::byte>(77), "w 77 bytes is not what this library stores");
  changed("an unknown kind of weights", "weights", 17, "weights=17 is not what this library stores");
  judge.refuses(c.plugin, "an engine without fields", OwnedFields(), TensorRTPhase::kRUNTIME, "build the engine again");

  // Damage anywhere: refused or not, the process goes on, and what is accepted can be stored and cloned.
  std::mt19937 random(3);
  int accepted = 0;
  for (int i = 0; i < 500; ++i) {
    OwnedFields fields = good.fields;
    auto& all = fields.fields();
    OwnedFields::Field& f = all[random() % all.size()];
    const auto damage = [&](auto& bytes) {
      if (bytes.empty() || random() % 4 == 0) {
        bytes.resize(random() % (bytes.size() + 8));
      } else {
        using Byte = std::remove_reference_t<decltype(bytes[0])>;
        bytes[random() % bytes.size()] = static_cast<Byte>(random() % 256);
      }
    };
    if (auto* text = std::get_if<std::string>(&f.value)) damage(*text);
    if (auto* bytes = std::get_if<std::vector<std::byte>>(&f.value)) damage(*bytes);
    if (auto* number = std::get_if<std::int32_t>(&f.value)) *number = static_cast<std::int32_t>(random());
    const PluginHandle made(
        judge.library().creator(c.plugin).createPlugin("node", fields.collection(), TensorRTPhase::kRUNTIME));
    const std::string said = judge.logger().take_errors();
    if (made) {
      ++accepted;
      const PluginHandle clone((*made).clone());
      if (!clone || !clone.runtime().getFieldsToSerialize()) ++judge.counts.failed;
    } else if (said.empty()) {
      ++judge.counts.failed;
      std::printf("  failed: a damaged engine is refused without a reason\n");
    } else {
      ++judge.counts.passed;
    }
  }
  judge.counts.passed += accepted;
}

void shapes(Judge& judge, const std::string& target) {
  const Case c = all_cases(target).front();
  Filled data = filled(c.problem(c.rows_per), 1);
  Engine engine = build(judge.library(), judge.logger(), c, data);
  const PluginHandle plugin = deserialized(judge.library(), judge.logger(), c, engine);
  auto descs = descriptions(c, 8);
  const auto change = [&](const char* what, auto&& how, const char* reason) {
    auto wrong = descs;
    how(wrong);
    const std::int32_t status = plugin.runtime().onShapeChange(wrong.data(), 1, &wrong.back(), 1);
    judge.note(what, status != 0, reason);
  };
  change(
      "a shape of another width", [](auto& d) { d[0].dims.d[2] = 500; },
      "x must have 512 elements along its last axis");
  change(
      "a shape of one axis", [](auto& d) { d[0].dims.nbDims = 1; }, "x must have at least two axes");
  change(
      "a shape of too many axes", [](auto& d) { d[0].dims.nbDims = 99; }, "x must have 8 axes or fewer (got 99 axes)");
  void* const outputs[] = {nullptr};
  const void* const inputs[] = {nullptr};
  const std::int32_t status = plugin.runtime().enqueue(descs.data(), &descs.back(), inputs, outputs, nullptr, nullptr);
  judge.note("a launch without a context", status != 0, "is not attached to an execution context");
  judge.note("a tactic that does not exist", plugin.runtime().setTactic(99) != 0, "tactic must be one of 0 to");
  nvinfer1::DataType output;
  const nvinfer1::DataType types[] = {DataType::kFLOAT, DataType::kFLOAT};
  judge.note("a wrong type", plugin.build().getOutputDataTypes(&output, 1, types, 1) != 0, "x must be of type BF16");
  judge.note("a wrong number of inputs", plugin.build().getOutputDataTypes(&output, 1, types, 2) != 0,
             "inputs must be the 1 tensors x");
}

}  // namespace

Counts refusals(const Library& library, Logger& logger, const std::string& target) {
  Judge judge(library, logger);
  nodes(judge, target);
  engines(judge, target);
  shapes(judge, target);
  return judge.counts;
}

}  // namespace tilewright::tensorrt::host
