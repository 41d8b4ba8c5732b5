// SPDX-License-Identifier: Apache-2.0
// Whole model files from floats to quantized weights, on the host: which tensors, how each is encoded, what it loses,
// and how it lies in the output. A layer is encoded by a LayerQuantizer; round_to_nearest() is the plain one, and
// post_training() has the algorithms of post_training.h, with calibration data from files.
//
//   QuantizePolicy policy;
//   policy.format = "q4_0";
//   const QuantizeReport report = quantize_model({{"model.safetensors"}}, "model.gguf", policy);
//
// Which tensors. Those with two dimensions of F32, F16 or BF16 whose columns are a multiple of the format's block,
// except embeddings, norms, the output head and routers: names that match kept_by_default(). `only` replaces that list
// by its own choice, `skip` adds to what stays. Patterns are those of fnmatch(3): * ? [a-z]. All others are copied.
//
// How they lie in the output, which its ending decides:
//   .gguf         as GGUF's type of the format, names kept; the keys of a GGUF input are copied
//   .safetensors  int*_g* uint*_g*   as `packing` says: compressed_tensors (the default), gptq, gptq_v2 or awq; of
//                                    other codes than those of 4 bits gptq (the default) or gptq_v2
//                 e4m3_row int8_row  NAME F8_E4M3 or I8 [n, k], NAME_scale F32 [n, 1] (compressed-tensors)
//                 nvfp4              NAME_packed U8 [n, k / 2], NAME_scale F8_E4M3 [n, k / 16] and NAME_global_scale
//                                    F32 [1], the inverse of the format's global scale (compressed-tensors)
//                 f32 f16 bf16       NAME of that type
//                 Of AWQ besides, whatever the packing: NAME without "weight" and then pre_quant_scale, F32 [k]
//                 (ModelOpt's name): the layer's inputs times these are what the stored weight wants.
//
// The output is written under another name (model_writer.h), beside a journal, OUTPUT.part.journal, that says which
// tensors are done, from which input and options, with a hash of their bytes. Whatever stops the work leaves both, and
// `resume` goes on from there: tensors whose bytes do not have their hash are made again. The finished file has the
// same bytes as one made in one go, for any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/export.h>
#include <tilewright/format.h>
#include <tilewright/post_training.h>

namespace tilewright {

class Device;
class Engine;

// The weights of a layer, w[rows, cols], as floats.
struct LayerWeights {
  std::string_view name = {};  // of the tensor
  std::int64_t rows = 0, cols = 0;
  int threads = 1;                                        // that may be used for it
  std::function<void(std::string_view what)> stage = {};  // says what is being done; may be empty
  // Rows first to first + count - 1, to count * cols floats. Thread-safe. Throws Error (io), and (invalid_argument) for
  // a value that is no finite number.
  std::function<void(std::int64_t first, std::int64_t count, float* to)> read = {};
};

// What a layer's outputs lose over calibration rows: the error and energy of post_training.h.
struct OutputError {
  std::string method = {};  // that quantized the layer: "gptq"; empty if nothing was calibrated
  std::int64_t rows = 0;    // calibration rows
  double error = 0, energy = 0;
  double relative() const { return error == 0 ? 0 : error / energy; }
};

// One layer while it is quantized.
class TILEWRIGHT_EXPORT QuantizedLayer {
 public:
  virtual ~QuantizedLayer() = default;
  // Column i of the result is column order()[i] of the weights; empty: they keep their places.
  virtual std::span<const std::int32_t> order() const { return {}; }
  // Encodes rows first to first + count - 1, whose weights are `w` in their own order of columns, to those rows'
  // streams. `to.global` is set by global_scale() and only read. Called for every row once, from several threads.
  virtual void encode(std::int64_t first, std::int64_t count, const float* w, MutableOperand to) const = 0;
  virtual float global_scale() const { return 1; }  // of formats that have one
  // What each column of the weights was multiplied by before it was encoded, in their own order; empty: nothing.
  virtual std::span<const float> input_scales() const { return {}; }
  virtual OutputError output_error() const { return {}; }
};

// How a layer's weights become codes: what an algorithm implements. Thread-safe.
class TILEWRIGHT_EXPORT LayerQuantizer {
 public:
  virtual ~LayerQuantizer() = default;
  virtual Format format() const = 0;
  virtual bool reorders() const { return false; }       // whether a layer's order() may have entries
  virtual bool scales_inputs() const { return false; }  // whether a layer's input_scales() may have entries
  // Called for every layer before any work is done: throws Error if it cannot be quantized.
  virtual void check(std::string_view name, std::int64_t rows, std::int64_t cols) const {
    static_cast<void>(name), static_cast<void>(rows), static_cast<void>(cols);
  }
  // Everything that its results depend on besides the weights, as one line: results of another line are not resumed.
  virtual std::string identity() const = 0;
  // Called once for each layer, one layer at a time. May read all of the weights.
  virtual std::unique_ptr<QuantizedLayer> begin(const LayerWeights& weights) const = 0;
};

// FormatInfo::encode by the encoder of that name, the format's first one if it is empty. Throws Error
// (invalid_argument) naming the encoders.
TILEWRIGHT_EXPORT std::unique_ptr<LayerQuantizer> round_to_nearest(Format format, std::string_view encoder = {});

// The algorithms of post_training.h, for layers whose inputs are in files: integer_formats() (format.h) only.
//
// `calibration` has .npy and .safetensors files, and folders of such (not of folders in them). An array holds inputs of
// one layer, [rows, k] or with more dimensions in front, in single, double, half precision or bfloat16, and is called
// like the layer's weight, with or without ".weight"; a .npy file's name without .npy is the array's. Arrays of one
// name in several files are further rows. Arrays that no layer has the name of are not read.
struct PostTraining {
  Format format;
  std::string encoder = {};     // empty: the format's first
  std::string method = "gptq";  // gptq, awq, or rtn, which is rounding to nearest with its error
  std::vector<std::string> calibration = {};
  bool fallback = false;  // layers without calibration data are rounded to nearest; else they are an Error
  GptqOptions gptq = {};
  AwqOptions awq = {};
  // GPTQ of layers that fit the device's memory is done there (gptq.h), with the same bits. Both or none; they must
  // outlive the quantizer.
  Engine* engine = nullptr;
  const Device* device = nullptr;
};
// Throws Error: invalid_argument for an unknown method, format or encoder, options out of range, no calibration data,
// and what is wrong with a file; io. The quantizer's check() throws Error (invalid_argument) for a layer without
// calibration rows, or whose arrays are not k wide. Files are opened again when their layer's turn comes, and must not
// change meanwhile: Error (io).
TILEWRIGHT_EXPORT std::unique_ptr<LayerQuantizer> post_training(const PostTraining& options);

// FormatInfo::encode_weighted: K-quants by ggml's search, each column with its importance. `files` are .npy and
// .safetensors files, whose arrays have one number of 0 to 1e15 for each column and are called like the layer's weight,
// with or without ".weight", and imatrix files of llama.cpp (.gguf). With `fallback`, layers without importance are
// encoded by encoder "ggml"; else check() throws Error for them. Throws Error: unsupported for a format without
// encode_weighted, invalid_argument for what is wrong with a file; io.
TILEWRIGHT_EXPORT std::unique_ptr<LayerQuantizer> importance_weighted(Format format, std::span<const std::string> files,
                                                                      bool fallback = false);

struct QuantizePolicy {
  std::string format = {};
  std::string encoder = {};            // empty: the format's first
  std::string packing = {};            // of 4-bit formats in safetensors; empty: compressed_tensors
  std::vector<std::string> only = {};  // patterns of names
  std::vector<std::string> skip = {};
  const LayerQuantizer* quantizer = nullptr;  // null: round_to_nearest(format, encoder)
  bool resume = false;                        // go on with OUTPUT.part; Error (invalid_argument) if that cannot be
  bool replace = false;                       // an output that exists
  int threads = 0;                            // 0: one per core
  std::uint64_t sync_bytes = 64 << 20;        // of the input, after which the journal is brought up to date
  // After each part of the work, in MiB of the input; what it throws ends the work. Called from one thread.
  std::function<void(std::string_view stage, int done, int total)> progress = {};
};

struct TILEWRIGHT_EXPORT TensorReport {
  std::string name = {};
  std::string type = {};  // as the input says: "BF16"
  bool quantized = false;
  std::string kept = {};  // why not, empty if it is quantized
  std::int64_t rows = 0, cols = 0;
  std::uint64_t bytes_before = 0, bytes_after = 0;
  double squares = 0, error_squares = 0;  // sums over the elements, of the weight and of its error
  double max_error = 0;                   // the largest magnitude of an error
  OutputError output = {};                // of a quantizer that has calibration data
  bool resumed = false;                   // its bytes are those of an earlier run
  double relative_rms() const;            // sqrt(error_squares / squares), 0 of zeros
};

struct TILEWRIGHT_EXPORT QuantizeReport {
  std::vector<TensorReport> tensors = {};  // in the input's order
  std::uint64_t bytes_before = 0, bytes_after = 0;
  double relative_rms() const;  // of all quantized tensors together
  std::string config = {};      // JSON for loaders: what is in the file `config_path`; empty if none is needed
  std::string config_path = {};
};

TILEWRIGHT_EXPORT std::span<const char* const> kept_by_default();

// `inputs`: safetensors files that together are one model, or one index of such (NAME.safetensors.index.json), or one
// GGUF file. Beside a safetensors output the configuration that loaders want is written, as it is in its metadata under
// "quantization_config": quantize_config.json for gptq (GPTQModel, vLLM), quant_config.json for awq (AutoAWQ, vLLM),
// and quantization_config.json for compressed-tensors, an object to merge into the model's config.json.
// Throws Error: invalid_argument for what the policy or a file says, unsupported for a tensor that the output cannot
// hold, too_large, io.
TILEWRIGHT_EXPORT QuantizeReport quantize_model(std::span<const std::string> inputs, const std::string& output,
                                                const QuantizePolicy& policy);
// The same report without errors and without writing anything.
TILEWRIGHT_EXPORT QuantizeReport plan_quantization(std::span<const std::string> inputs, const std::string& output,
                                                   const QuantizePolicy& policy);

}  // namespace tilewright
