// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/host/session.h"

#include <tilewright/gemm.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

namespace tilewright::tensorrt::host {
namespace {

using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginFormat;
using nvinfer1::PluginTensorDesc;
using nvinfer1::TensorRTPhase;

void require(bool good, Logger& logger, const std::string& what) {
  const std::string errors = logger.take_errors();
  if (!good) throw Failure(what + (errors.empty() ? "" : ": " + errors));
}

std::string text_of(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text;
}

OwnedFields node_fields(const Case& of, Filled& data) {
  std::vector<OwnedFields::Field> fields = of.fields;
  for (const Case::Constant& c : of.constants) fields.push_back({c.field, data.bytes(c.from)});
  return OwnedFields(std::move(fields));
}

DynamicPluginTensorDesc dynamic(const Shape& shape, DataType type, std::int64_t most) {
  return {{dims_of(shape), type, PluginFormat::kLINEAR, 1.0f},
          dims_of(with(shape, 1)),
          dims_of(with(shape, most)),
          dims_of(with(shape, (most + 1) / 2))};
}

// TensorRT tries types and formats at each position until one is taken; a model's types are fixed here. What is wrong
// at a position must be refused.
void check_formats(nvinfer1::IPluginV3OneBuild& plugin, std::vector<DynamicPluginTensorDesc> all, Logger& logger) {
  const auto inputs = static_cast<std::int32_t>(all.size()) - 1;
  for (std::int32_t i = 0; i <= inputs; ++i) {
    PluginTensorDesc& desc = all[static_cast<std::size_t>(i)].desc;
    require(plugin.supportsFormatCombination(i, all.data(), inputs, 1), logger,
            "the plugin does not take the type of tensor " + std::to_string(i));
    const auto refuses = [&](const char* what) {
      if (plugin.supportsFormatCombination(i, all.data(), inputs, 1))
        throw Failure("the plugin takes " + std::string(what) + " at position " + std::to_string(i));
    };
    const DataType type = std::exchange(desc.type, DataType::kBOOL);
    refuses("BOOL");
    desc.type = type;
    desc.format = PluginFormat::kHWC8;
    refuses("the format HWC8");
    desc.format = PluginFormat::kLINEAR;
  }
}

}  // namespace

Shape with(const Shape& shape, std::int64_t varies) {
  Shape out = shape;
  for (std::int64_t& extent : out)
    if (extent < 0) extent = varies;
  return out;
}

std::vector<PluginTensorDesc> descriptions(const Case& of, std::int64_t varies) {
  std::vector<PluginTensorDesc> all;
  for (const Input& input : of.inputs)
    all.push_back({dims_of(with(input.shape, varies)), input.type, PluginFormat::kLINEAR, 1.0f});
  all.push_back({dims_of(with(of.output, varies)), of.output_type, PluginFormat::kLINEAR, 1.0f});
  return all;
}

Engine build(const Library& library, Logger& logger, const Case& of, Filled& data) {
  nvinfer1::IPluginCreatorV3One& creator = library.creator(of.plugin);
  PluginHandle parsed(nullptr);
  {
    OwnedFields fields = node_fields(of, data);  // which TensorRT frees after the call
    parsed = PluginHandle(creator.createPlugin(of.name.c_str(), fields.collection(), TensorRTPhase::kBUILD));
  }
  require(static_cast<bool>(parsed), logger, "the plugin refuses the node");
  if (std::string(parsed.core().getPluginName()) != of.plugin || std::string(parsed.core().getPluginVersion()) != "1")
    throw Failure("the plugin has another name or version than its creator");
  PluginHandle plugin((*parsed).clone());  // a network has its own, and the parser's goes
  parsed = PluginHandle(nullptr);
  require(static_cast<bool>(plugin), logger, "the plugin cannot be cloned");
  nvinfer1::IPluginV3OneBuild& b = plugin.build();

  const auto inputs = static_cast<std::int32_t>(of.inputs.size());
  std::vector<DataType> types;
  Expressions expressions;
  std::vector<nvinfer1::DimsExprs> shapes;
  std::vector<DynamicPluginTensorDesc> all;
  for (const Input& input : of.inputs) {
    types.push_back(input.type);
    shapes.push_back(expressions.shape(input.shape));
    all.push_back(dynamic(input.shape, input.type, of.most));
  }
  all.push_back(dynamic(of.output, of.output_type, of.most));

  DataType output = DataType::kBOOL;
  require(b.getNbOutputs() == 1, logger, "the plugin has not one output");
  require(b.getOutputDataTypes(&output, 1, types.data(), inputs) == 0, logger, "the plugin refuses the types");
  if (output != of.output_type) throw Failure("the output's type is " + std::to_string(static_cast<int>(output)));
  nvinfer1::DimsExprs shape = {};
  require(b.getOutputShapes(shapes.data(), inputs, nullptr, 0, &shape, 1, expressions.builder()) == 0, logger,
          "the plugin refuses the shapes");
  if (Expressions::value(shape) != of.output)
    throw Failure("the output's shape is " + text_of(Expressions::value(shape)) + ", not " + text_of(of.output));
  check_formats(b, all, logger);
  require(b.configurePlugin(all.data(), inputs, &all.back(), 1) == 0, logger, "the plugin refuses the profile");

  const std::int32_t count = b.getNbTactics();
  std::vector<std::int32_t> tactics(static_cast<std::size_t>(std::max(count, 0)));
  require(count >= 0 && b.getValidTactics(tactics.data(), count) == 0, logger, "the plugin has no list of tactics");
  for (std::size_t i = 0; i < tactics.size(); ++i)
    if (tactics[i] < 1 || std::count(tactics.begin(), tactics.end(), tactics[i]) != 1)
      throw Failure("tactics must be positive and different");

  Engine engine;
  engine.tactics = count;
  engine.workspace = b.getWorkspaceSize(all.data(), inputs, &all.back(), 1);
  const char* const timing = b.getTimingCacheID();
  require(timing && *timing, logger, "the plugin has no identity for the timing cache");
  engine.timing = timing;
  const nvinfer1::PluginFieldCollection* const stored = plugin.runtime().getFieldsToSerialize();
  require(stored != nullptr, logger, "the plugin cannot be stored");
  engine.fields = OwnedFields::copy_of(*stored);
  return engine;
}

void check_weights(Engine& engine, Filled& data) {
  using Bytes = std::vector<std::byte>;
  const auto field = [&](const char* name) -> OwnedFields::Value* {
    for (OwnedFields::Field& f : engine.fields.fields())
      if (f.name == name) return &f.value;
    return nullptr;
  };
  const auto stream = [&](const char* name) {
    OwnedFields::Value* const value = field(name);
    return value ? std::get<Bytes>(*value) : Bytes();
  };
  Bytes stored[] = {stream("w"), stream("w_scales"), stream("w_global")};
  if (stored[0].empty()) return;
  const Problem problem = Problem::parse(std::get<std::string>(*field("problem")));
  const Gemm* const gemm = problem.as<Gemm>();
  const char* const names[] = {"w.data", "w.scales"};
  if (gemm && gemm->packing != Packing::none) {
    Bytes plain[2];
    for (int i = 0; i < 2; ++i)
      if (data.has(names[i])) plain[i].resize(data.of(names[i]).size());
    const auto pointer = [](Bytes& b) -> void* { return b.empty() ? nullptr : b.data(); };
    auto* const factor = static_cast<float*>(pointer(stored[2]));
    unpack_weights(*gemm, {pointer(stored[0]), pointer(stored[1]), factor},
                   {pointer(plain[0]), pointer(plain[1]), factor});
    stored[0] = std::move(plain[0]), stored[1] = std::move(plain[1]);
  }
  for (int i = 0; i < 2; ++i)
    if (data.has(names[i]) && stored[i] != data.of(names[i]))
      throw Failure(std::string("the engine stores other weights than the node's: ") + names[i]);
}

PluginHandle deserialized(const Library& library, Logger& logger, const Case& of, Engine& engine) {
  nvinfer1::IPluginCreatorV3One& creator = library.creator(of.plugin);
  PluginHandle plugin(creator.createPlugin(of.name.c_str(), engine.fields.collection(), TensorRTPhase::kRUNTIME));
  require(static_cast<bool>(plugin), logger, "the plugin refuses what an engine stored");
  // What is stored again must be the same: of the plugin, and of its clone after the plugin went.
  for (int round = 0; round < 2; ++round) {
    const nvinfer1::PluginFieldCollection* const stored = plugin.runtime().getFieldsToSerialize();
    require(stored != nullptr, logger, "the plugin cannot be stored again");
    if (!(OwnedFields::copy_of(*stored) == engine.fields))
      throw Failure("the plugin stores something else the second time");
    PluginHandle clone((*plugin).clone());
    require(static_cast<bool>(clone), logger, "the plugin cannot be cloned");
    plugin = std::move(clone);
  }
  return plugin;
}

// ---- files: for each field its name, its kind (place in OwnedFields::Value) and its bytes

void write(const Engine& engine, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  const auto put = [&](const void* data, std::uint64_t size) {
    file.write(reinterpret_cast<const char*>(&size), sizeof size);
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  };
  put(&engine.workspace, sizeof engine.workspace);
  put(&engine.tactics, sizeof engine.tactics);
  put(engine.timing.data(), engine.timing.size());
  for (const OwnedFields::Field& f : engine.fields.fields()) {
    const auto kind = static_cast<std::uint8_t>(f.value.index());
    put(f.name.data(), f.name.size());
    put(&kind, sizeof kind);
    std::visit(
        [&](const auto& value) {
          if constexpr (requires { value.data(); })
            put(value.data(), value.size());
          else
            put(&value, sizeof value);
        },
        f.value);
  }
  if (!file.flush()) throw Failure(path + " cannot be written");
}

Engine read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Failure(path + " cannot be read; was it written with --write?");
  const auto more = [&] { return file.peek() != std::ifstream::traits_type::eof(); };
  const auto get = [&] {
    std::uint64_t size = 0;
    file.read(reinterpret_cast<char*>(&size), sizeof size);
    std::string bytes(file ? size : 0, '\0');
    if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) throw Failure(path + " is cut");
    return bytes;
  };
  Engine engine;
  std::memcpy(&engine.workspace, get().data(), sizeof engine.workspace);
  std::memcpy(&engine.tactics, get().data(), sizeof engine.tactics);
  engine.timing = get();
  while (more()) {
    const std::string name = get(), kind = get(), bytes = get();
    const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
    OwnedFields::Value value;
    switch (kind.at(0)) {
      case 0: value = bytes; break;
      case 1: std::memcpy(&value.emplace<1>(), data, sizeof(std::int32_t)); break;
      case 2: std::memcpy(&value.emplace<2>(), data, sizeof(float)); break;
      default: value = std::vector<std::byte>(data, data + bytes.size());
    }
    engine.fields.fields().push_back({name, std::move(value)});
  }
  return engine;
}

}  // namespace tilewright::tensorrt::host
