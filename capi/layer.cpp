// SPDX-License-Identifier: Apache-2.0
// Layers. Launches allocate nothing unless they fail, but for a stream's first workspace.
#include "capi/handles.h"

using namespace tilewright;
using namespace tilewright::capi;

struct tw_layer : Handle {
  static constexpr char kKind[] = "layer";
  tw_layer(tw_engine* of, const Problem& problem, const Device& device, const LayerOptions& options)
      : Handle(kKind), engine(of), value(handle(of).value, problem, device, options) {
    retain(engine);
  }
  ~tw_layer() { release(engine); }

  tw_engine* const engine;
  Layer value;
};

namespace {

LayerOptions options_of(const char* x_from, std::int32_t pack) {
  check_flag(pack, "pack");
  LayerOptions options;
  if (x_from) options.x_from = Format::parse(x_from);
  options.pack = pack != 0;
  return options;
}

tw_problem* problem_of(const std::optional<Problem>& problem) { return problem ? new tw_problem(*problem) : nullptr; }

void write_problems(tw_layer_problems* problems, const LayerProblems& found) {
  write_struct(
      problems,
      {0, problem_of(found.main), problem_of(found.cast), problem_of(found.fused), problem_of(found.repack), found.few},
      "problems");
}

}  // namespace

extern "C" {

tw_status tw_layer_describe(const tw_problem* problem, const char* arch_name, const char* x_from, int32_t pack,
                            tw_layer_problems* problems, tw_error** error) {
  return guarded(error, [&] {
    write_problems(problems,
                   layer_problems(handle(problem).value, arch(text(arch_name, "arch")), options_of(x_from, pack)));
  });
}

tw_status tw_layer_create(tw_engine* engine, const tw_problem* problem, const tw_device* device, const char* x_from,
                          int32_t pack, tw_layer** layer, tw_error** error) {
  return guarded(error, [&] {
    required(layer, "layer");
    create(layer, "layer", engine, handle(problem).value, handle(device).value, options_of(x_from, pack));
  });
}
void tw_layer_retain(tw_layer* layer) { retain(layer); }
void tw_layer_release(tw_layer* layer) { release(layer); }

tw_status tw_layer_get_problems(const tw_layer* layer, tw_layer_problems* problems, tw_error** error) {
  return guarded(error, [&] { write_problems(problems, handle(layer).value.problems()); });
}

tw_status tw_layer_kernel(const tw_layer* layer, tw_kernel** kernel, tw_error** error) {
  return guarded(error, [&] { create(kernel, "kernel", handle(layer).value.kernel()); });
}

int32_t tw_layer_packed(const tw_layer* layer) { return is_handle(layer) && layer->value.packed(); }

tw_status tw_layer_weight_bytes(const tw_layer* layer, tw_stream_name stream, size_t* bytes, tw_error** error) {
  return guarded(error, [&] { required(bytes, "bytes") = handle(layer).value.weight_bytes(stream_name(stream)); });
}

tw_status tw_layer_pack(const tw_layer* layer, tw_stream stream, tw_operand from, tw_mutable_operand to,
                        tw_error** error) {
  return guarded(error, [&] { handle(layer).value.pack(stream, operand(from), operand(to)); });
}

tw_status tw_layer_load(tw_layer* layer, tw_stream stream, tw_operand w, tw_error** error) {
  return guarded(error, [&] { handle(layer).value.load(stream, operand(w)); });
}

size_t tw_layer_scratch_bytes(const tw_layer* layer, int64_t rows) {
  return is_handle(layer) && rows > 0 ? layer->value.scratch_bytes(rows) : 0;
}

tw_status tw_layer_launch_gemm(const tw_layer* layer, tw_stream stream, const tw_gemm_args* args, void* scratch) {
  return guarded(nullptr, [&] { handle(layer).value.launch(stream, gemm_args(args), scratch); });
}

tw_status tw_layer_launch_conv(const tw_layer* layer, tw_stream stream, const tw_conv_args* args, void* scratch) {
  return guarded(nullptr, [&] { handle(layer).value.launch(stream, conv_args(args), scratch); });
}

}  // extern "C"
