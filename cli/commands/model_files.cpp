// SPDX-License-Identifier: Apache-2.0
// tensors, workload: what a model file has, and the problems that its layers are.
#include <fmt/format.h>
#include <tilewright/gguf.h>
#include <tilewright/safetensors.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

namespace fs = std::filesystem;

struct ModelTensor {
  std::string name, type, format;   // format: empty if the library has none of these bytes
  std::vector<std::int64_t> shape;  // outermost first
  std::uint64_t bytes = 0;
};

void add_safetensors(const std::string& path, std::vector<ModelTensor>& tensors) {
  const Safetensors file = Safetensors::open(path);
  for (const SafetensorsTensor& t : file.tensors())
    tensors.push_back({t.name, std::string(t.dtype), std::string(t.format), t.shape, t.bytes});
}

// A GGUF file, a safetensors file, or a folder of the latter.
std::vector<ModelTensor> tensors_of(const std::string& path) {
  std::vector<ModelTensor> tensors;
  if (fs::is_directory(path)) {
    std::vector<std::string> files;
    for (const fs::directory_entry& file : fs::directory_iterator(path))
      if (file.path().extension() == ".safetensors") files.push_back(file.path().string());
    std::sort(files.begin(), files.end());
    if (files.empty())
      throw Error(ErrorCode::invalid_argument, "MODEL", path, "has no .safetensors file; name a folder that has");
    for (const std::string& file : files) add_safetensors(file, tensors);
  } else if (path.ends_with(".gguf")) {
    const Gguf file = Gguf::open(path);
    for (const GgufTensor& t : file.tensors())
      tensors.push_back(
          {t.name, std::string(t.type_name), std::string(t.format), {t.dims.rbegin(), t.dims.rend()}, t.bytes});
  } else {
    add_safetensors(path, tensors);
  }
  return tensors;
}

int run_tensors(const Context& context, const std::string& path) {
  const std::vector<ModelTensor> tensors = tensors_of(path);
  double bytes = 0;
  Json list = Json::array();
  Table table({"tensor", "shape", "type", "format", "size"});
  for (const ModelTensor& t : tensors) {
    bytes += static_cast<double>(t.bytes);
    list.push_back({{"name", t.name},
                    {"shape", t.shape},
                    {"type", t.type},
                    {"format", t.format.empty() ? Json() : Json(t.format)},
                    {"bytes", t.bytes}});
    table.add({t.name, fmt::format("{}", fmt::join(t.shape, " x ")), t.type, t.format.empty() ? "-" : t.format,
               bytes_text(static_cast<double>(t.bytes))});
  }
  if (context.json) {
    print_json(Json{{"file", path}, {"tensors", list}});
  } else {
    print(table.text());
    print(fmt::format("{} tensors, {}", tensors.size(), bytes_text(bytes)));
  }
  return kOk;
}

// ---- workload

struct WorkloadArgs {
  std::string model, x, w, fields;
  std::vector<std::int64_t> rows = {1};
};

// A layer's weight, [n, k], in a format; how many layers have one like it.
struct Layers {
  std::string example;
  int count = 0;
};
struct Shape {
  std::string w;
  std::int64_t n = 0, k = 0;
  auto operator<=>(const Shape&) const = default;
};
using Shapes = std::vector<std::pair<Shape, Layers>>;

void add(Shapes& shapes, const Shape& shape, const std::string& name, int count = 1) {
  auto it = std::find_if(shapes.begin(), shapes.end(), [&](const auto& s) { return s.first == shape; });
  if (it == shapes.end()) it = shapes.insert(shapes.end(), {shape, {name, 0}});
  it->second.count += count;
}

// The linear layers of a decoder, as Hugging Face's config.json describes it: q, k and v together, gate and up too.
Shapes shapes_of_config(const std::string& path, const std::string& w) {
  std::ifstream stream(path);
  const Json config = Json::parse(stream, nullptr, false);
  const Json& text = config.is_object() && config.contains("text_config") ? config["text_config"] : config;
  const auto number = [&](const char* key, std::int64_t otherwise) -> std::int64_t {
    if (text.is_object() && text.contains(key) && text[key].is_number_integer()) return text[key].get<std::int64_t>();
    if (otherwise > 0) return otherwise;
    throw Error(ErrorCode::invalid_argument, "MODEL", path, fmt::format("must be JSON with a number {}", key));
  };
  const std::int64_t hidden = number("hidden_size", 0), heads = number("num_attention_heads", 0),
                     inner = number("intermediate_size", 0), kv = number("num_key_value_heads", heads),
                     head = number("head_dim", std::max<std::int64_t>(hidden / std::max<std::int64_t>(heads, 1), 1));
  const int layers = static_cast<int>(number("num_hidden_layers", 0));
  Shapes shapes;
  add(shapes, {w, (heads + 2 * kv) * head, hidden}, "q, k and v", layers);
  add(shapes, {w, hidden, heads * head}, "attention's output", layers);
  add(shapes, {w, 2 * inner, hidden}, "gate and up", layers);
  add(shapes, {w, hidden, inner}, "down", layers);
  return shapes;
}

// `left`: matrices that are no layers' weights in a format of the library.
Shapes shapes_of_file(const std::string& path, const std::string& w, std::vector<std::string>& left) {
  Shapes shapes;
  for (const ModelTensor& t : tensors_of(path)) {
    if (t.shape.size() != 2 || t.shape[0] < 2 || t.shape[1] < 2) continue;
    const bool embedding = t.name.find("embd") != t.name.npos || t.name.find("embed") != t.name.npos ||
                           t.name.find("token_types") != t.name.npos;
    if (embedding || (t.format.empty() && w.empty()))
      left.push_back(fmt::format("{} ({})", t.name, embedding ? "an embedding" : t.type));
    else
      add(shapes, {w.empty() ? t.format : w, t.shape[0], t.shape[1]}, t.name);
  }
  return shapes;
}

bool is_float(std::string_view format) { return format == "f32" || format == "f16" || format == "bf16"; }

// What llama.cpp, or a PyTorch layer, multiplies such weights by.
std::string fields_for(const WorkloadArgs& args, const std::string& w) {
  const bool ggml = Format::parse(w).name().starts_with('q');
  const std::string x = !args.x.empty() ? args.x : is_float(w) ? w : ggml ? "q8_1" : "bf16";
  return fmt::format("x={} w={} y={}", x, w, is_float(x) ? x : "f32");
}

int run_workload(const Context& context, const WorkloadArgs& args) {
  std::vector<std::string> left;
  const bool config = args.model.ends_with(".json");
  const Shapes shapes = config ? shapes_of_config(args.model, args.w.empty() ? "bf16" : args.w)
                               : shapes_of_file(args.model, args.w, left);
  Json problems = Json::array(), refused = Json::array();
  std::string out = fmt::format("# {}\n", args.model);
  for (const auto& [shape, layers] : shapes) {
    out += fmt::format("# {} like {}\n", layers.count, layers.example);
    for (const std::int64_t m : args.rows) {
      const std::string text = fmt::format("gemm {} m={} n={} k={}{}{}", fields_for(args, shape.w), m, shape.n, shape.k,
                                           args.fields.empty() ? "" : " ", args.fields);
      try {
        const std::string problem = Problem::parse(text).text();
        out += problem + "\n";
        problems.push_back({{"problem", problem}, {"layers", layers.count}, {"example", layers.example}});
      } catch (const Error& e) {
        out += fmt::format("# no problem: {}: {}\n", text, e.what());
        refused.push_back({{"text", text}, {"why", e.what()}});
      }
    }
  }
  for (const std::string& name : left) out += fmt::format("# left out: {}\n", name);
  if (problems.empty())
    throw Error(ErrorCode::invalid_argument, "MODEL", args.model,
                refused.empty() ? "has no matrices that are weights of layers"
                                : "has none that fits: " + refused[0]["why"].get<std::string>());
  if (context.json)
    print_json(Json{{"model", args.model}, {"problems", problems}, {"refused", refused}, {"left_out", left}});
  else
    print(out);
  return kOk;
}

}  // namespace

void add_model_files(Context& context) {
  const auto path = std::make_shared<std::string>();
  CLI::App* tensors = add_command(context, *context.app, "tensors", "List a model file's tensors");
  tensors->add_option("file", *path, "A GGUF or safetensors file, or a folder of the latter")
      ->type_name("FILE")
      ->required();
  tensors->callback([&context, path] { context.action = [&context, path] { return run_tensors(context, *path); }; });

  const auto args = std::make_shared<WorkloadArgs>();
  CLI::App* workload =
      add_command(context, *context.app, "workload", "Write the problems of a model's layers, for prewarm and tune");
  workload
      ->add_option("model", args->model,
                   "A GGUF or safetensors file, a folder of the latter, or a decoder's config.json")
      ->type_name("MODEL")
      ->required();
  workload->add_option("--x", args->x, "Format of activations (default: w's if that is a float, else q8_1 or bf16)")
      ->type_name("FORMAT");
  workload->add_option("--w", args->w, "Format of weights (default: the file's; of config.json bf16)")
      ->type_name("FORMAT");
  workload->add_option("--m", args->rows, "Numbers of rows, separated by commas (default: 1)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("M");
  workload->add_option("--fields", args->fields, "More fields of every problem, e.g. 'weights=constant'")
      ->type_name("TEXT");
  workload->callback([&context, args] { context.action = [&context, args] { return run_workload(context, *args); }; });
}

}  // namespace tilewright::cli
