// SPDX-License-Identifier: Apache-2.0
// quantize: a model file in floats to one in quantized weights.
#include <fmt/format.h>
#include <tilewright/engine.h>
#include <tilewright/gptq.h>
#include <tilewright/quantize_model.h>

#include <algorithm>
#include <optional>

#include "cli/command.h"
#include "cli/output_file.h"

namespace tilewright::cli {
namespace {

struct QuantizeArgs {
  std::vector<std::string> inputs;
  std::string output;
  QuantizePolicy policy;
  PostTraining training{.format = Format::parse("int4_g128"), .method = "rtn"};
  bool dry = false, cpu = false;
  int device = -1;
  std::vector<std::string> importance;
  std::vector<const CLI::Option*> of_gptq, of_awq, of_calibration;
};

Json json(const TensorReport& t, bool dry) {
  Json j = {{"name", t.name}, {"type", t.type}, {"rows", t.rows}, {"cols", t.cols}, {"quantized", t.quantized}};
  if (!t.quantized) j["kept"] = t.kept;
  j["bytes_before"] = t.bytes_before;
  j["bytes_after"] = t.bytes_after;
  if (t.quantized && !dry) {
    j["relative_rms"] = t.relative_rms();
    j["max_error"] = t.max_error;
    if (!t.output.method.empty())
      j["output"] = {{"method", t.output.method},
                     {"rows", t.output.rows},
                     {"error", t.output.error},
                     {"relative", t.output.relative()}};
  }
  j["resumed"] = t.resumed;
  return j;
}

void show(const QuantizeReport& report, const QuantizeArgs& args) {
  const bool calibrated = !args.training.calibration.empty() && !args.dry;
  std::vector<std::string> head = {"tensor", "rows x cols", "from", "before", "after", "relative RMS", "largest error"};
  if (calibrated) head.insert(head.end(), {"method", "calibration rows", "outputs' error"});
  Table table(head);
  std::size_t quantized = 0, resumed = 0;
  for (const TensorReport& t : report.tensors) {
    resumed += t.resumed;
    if (!t.quantized) continue;
    ++quantized;
    std::vector<std::string> row = {t.name,
                                    fmt::format("{} x {}", t.rows, t.cols),
                                    t.type,
                                    bytes_text(static_cast<double>(t.bytes_before)),
                                    bytes_text(static_cast<double>(t.bytes_after)),
                                    args.dry ? "-" : fmt::format("{:.3e}", t.relative_rms()),
                                    args.dry ? "-" : fmt::format("{:.3e}", t.max_error)};
    if (calibrated && t.output.method.empty())
      row.insert(row.end(), {"rtn", "none", "-"});
    else if (calibrated)
      row.insert(row.end(),
                 {t.output.method, std::to_string(t.output.rows), fmt::format("{:.3e}", t.output.relative())});
    table.add(std::move(row));
  }
  print(table.text());
  Table kept({"kept", "rows x cols", "type", "because"});
  for (const TensorReport& t : report.tensors)
    if (!t.quantized && t.rows > 1 && t.cols > 1)
      kept.add({t.name, fmt::format("{} x {}", t.rows, t.cols), t.type, t.kept});
  print(kept.text());
  print(fmt::format(
      "{} of {} tensors quantized to {}{}, {} -> {}{}", quantized, report.tensors.size(), args.policy.format,
      resumed ? fmt::format(" ({} done by an earlier run)", resumed) : "",
      bytes_text(static_cast<double>(report.bytes_before)), bytes_text(static_cast<double>(report.bytes_after)),
      args.dry ? "; nothing is written" : fmt::format(", relative RMS error {:.3e}", report.relative_rms())));
  if (!args.dry && !report.config_path.empty()) print("configuration for loaders: " + report.config_path);
}

// The quantizer of --method; none: rounding to nearest without calibration data.
std::unique_ptr<LayerQuantizer> quantizer_of(QuantizeArgs& args) {
  PostTraining& training = args.training;
  const auto only_for = [&](std::span<const CLI::Option* const> options, bool given, const char* what) {
    for (const CLI::Option* option : options)
      if (option->count() && !given)
        throw Error(ErrorCode::invalid_argument, option->get_name(), "given", fmt::format("is for {}", what));
  };
  only_for(args.of_gptq, training.method == "gptq", "--method gptq");
  only_for(args.of_awq, training.method == "awq", "--method awq");
  only_for(args.of_calibration, !training.calibration.empty() || !args.importance.empty(),
           "--calibration and --importance");
  if (!args.importance.empty()) {
    if (training.method != "rtn" || !training.calibration.empty())
      throw Error(ErrorCode::invalid_argument, "--importance", args.importance.front(),
                  "is for encoders of ggml, without --method and --calibration");
    if (!args.policy.encoder.empty() && args.policy.encoder != "ggml")
      throw Error(ErrorCode::invalid_argument, "--encoder", args.policy.encoder, "must be ggml with --importance");
    return importance_weighted(Format::parse(args.policy.format), args.importance, training.fallback);
  }
  if (training.method == "rtn" && training.calibration.empty()) return nullptr;
  training.format = Format::parse(args.policy.format);
  training.encoder = args.policy.encoder;
  return post_training(training);
}

// What GPTQ runs on instead of the host, if anything: results have the same bits.
class Gpu {
 public:
  Gpu(const Options& options, const QuantizeArgs& args) {
    if (args.training.method != "gptq" || args.cpu || args.dry) return;
    const bool asked = args.device >= 0;
    if (!asked && Device::count(options.driver) == 0) return;
    try {
      device_ = need_device(std::max(args.device, 0), options, "quantize --device");
      engine_.emplace(options);
      for (const Task& task : gptq_tasks(Format::parse(args.policy.format))) engine_->prepare(task, *device_);
    } catch (const Error& e) {
      if (asked || e.code() == ErrorCode::invalid_argument) throw;
      device_.reset();
      tell(fmt::format("GPTQ runs on the host: {}", e.what()));
    }
  }
  void give(PostTraining& training) {
    training.engine = device_ ? &*engine_ : nullptr;
    training.device = device_ ? &*device_ : nullptr;
  }
  std::string name() const { return device_ ? device_->name() : ""; }

 private:
  std::optional<Device> device_;
  std::optional<Engine> engine_;
};

int run_quantize(const Context& context, QuantizeArgs& args) {
  QuantizePolicy& policy = args.policy;
  refuse_input("--out", args.output, args.training.calibration);
  refuse_input("--out", args.output, args.importance);
  Gpu gpu(context.options(), args);
  gpu.give(args.training);
  const auto quantizer = quantizer_of(args);
  policy.quantizer = quantizer.get();
  policy.progress = Progress();
  const QuantizeReport report =
      args.dry ? plan_quantization(args.inputs, args.output, policy) : quantize_model(args.inputs, args.output, policy);
  policy.progress = nullptr;  // the bar is erased before the report
  policy.quantizer = nullptr;
  if (!context.json) {
    show(report, args);
    return kOk;
  }
  Json tensors = Json::array();
  for (const TensorReport& t : report.tensors) tensors.push_back(json(t, args.dry));
  Json all = {{"output", args.output},
              {"format", policy.format},
              {"written", !args.dry},
              {"bytes_before", report.bytes_before},
              {"bytes_after", report.bytes_after}};
  if (!args.dry) all["relative_rms"] = report.relative_rms();
  if (!gpu.name().empty()) all["device"] = gpu.name();
  all["config_path"] = report.config_path;
  all["tensors"] = std::move(tensors);
  print_json(all);
  return kOk;
}

}  // namespace

void add_quantize(Context& context) {
  const auto args = std::make_shared<QuantizeArgs>();
  QuantizePolicy& policy = args->policy;
  CLI::App* command =
      add_command(context, *context.app, "quantize",
                  "Quantize a model file's weights, to nearest or by GPTQ or AWQ; needs no GPU, but GPTQ uses one");
  command->add_option("file", args->inputs, "safetensors files of one model, an index of such (.json), or a GGUF file")
      ->type_name("FILE")
      ->required();
  command->add_option("--format", policy.format, "Of the weights ('tilewright formats' lists them)")
      ->type_name("FORMAT")
      ->required();
  command->add_option("--out", args->output, "FILE.gguf or FILE.safetensors")->type_name("FILE")->required();
  command->add_option("--encoder", policy.encoder, "'tilewright encoders' lists them (default: the format's first)")
      ->type_name("NAME");
  command
      ->add_option("--packing", policy.packing,
                   "Of int4_* and uint4_* in safetensors: compressed_tensors (the default), gptq, gptq_v2, awq")
      ->type_name("NAME");
  PostTraining& training = args->training;
  command->add_option("--method", training.method, "rtn (to nearest, the default), gptq or awq")->type_name("NAME");
  command
      ->add_option("--calibration", training.calibration,
                   "Inputs of layers: .npy or .safetensors files, arrays [rows, k] named like the layer, or folders of "
                   "such; repeatable")
      ->allow_extra_args(false)
      ->type_name("PATH");
  args->of_calibration = {command->add_flag(
      "--fallback-rtn", training.fallback, "Round layers without calibration data to nearest; else they are an error")};
  command
      ->add_option(
          "--importance", args->importance,
          "q2_k to q6_k: a weight for each column; .npy or .safetensors files, arrays [k] named like the layer, "
          "or llama.cpp's imatrix.gguf; repeatable")
      ->allow_extra_args(false)
      ->type_name("FILE");
  args->of_gptq = {
      command->add_flag("--act-order", training.gptq.act_order, "GPTQ: columns with the largest inputs first"),
      command->add_flag("--static-groups", training.gptq.static_groups,
                        "GPTQ: scales from the weights as they were; columns keep their places"),
      command
          ->add_option("--damping", training.gptq.damping,
                       "GPTQ: added to the Hessian's diagonal, as a part of its mean (default: 0.01)")
          ->type_name("NUMBER"),
      command->add_option("--device", args->device, "GPTQ: ordinal of the GPU; an error if there is none")
          ->check(at_least(0)),
      command->add_flag("--cpu", args->cpu, "GPTQ: on the host, even with a GPU; the same bits")};
  args->of_awq = {command->add_flag("--clip", training.awq.clip, "AWQ: lower the range of a group where that helps")};
  command->add_option("--only", policy.only, "Quantize the tensors whose names match (* ? [a-z]); repeatable")
      ->allow_extra_args(false)
      ->type_name("PATTERN");
  command->add_option("--skip", policy.skip, "Copy the tensors whose names match; repeatable")
      ->allow_extra_args(false)
      ->type_name("PATTERN");
  command->add_flag("--resume", policy.resume, "Go on with what an interrupted run has left");
  command->add_flag("--force", policy.replace, "Replace an output that exists");
  command->add_flag("--dry-run", args->dry, "Only say which tensors would be quantized");
  command->add_option("--jobs", policy.threads, "Threads; 0: one per core")->check(CLI::Range(0, 1024));
  command->callback([&context, args] { context.action = [&context, args] { return run_quantize(context, *args); }; });
}

}  // namespace tilewright::cli
