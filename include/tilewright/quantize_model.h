// SPDX-License-Identifier: Apache-2.0
// Quantizes the weights of whole model files on the host: selects tensors, encodes them, measures their errors, and
// writes the output. A LayerQuantizer encodes each layer: round_to_nearest(), or post_training() with the algorithms of
// post_training.h and calibration data from files.
//
//   QuantizePolicy policy;
//   policy.format = "q4_0";
//   const QuantizeReport report = quantize_model({{"model.safetensors"}}, "model.gguf", policy);
//
// Which tensors are quantized: F32, F16 or BF16 tensors with two dimensions whose columns are a multiple of the
// format's block, except embeddings, norms, the output head and routers (names that match kept_by_default()). `only`
// replaces this list: only names that match it are quantized. `skip` excludes more names. Patterns are those of
// fnmatch(3): * ? [a-z]. All other tensors are copied.
//
// How they are stored, by the ending of the output's name:
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
// The output is written under another name (model_writer.h). A journal beside it, OUTPUT.part.journal, lists the
// finished tensors with a hash of their bytes, the input and the options. If the work is interrupted, both files
// remain, and `resume` continues: it makes tensors again if their bytes do not match the hash. The finished file has
// the same bytes as after an uninterrupted run, for any number of threads.
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
  int threads = 1;                                        // that may be used
  std::function<void(std::string_view what)> stage = {};  // called with a description of the current step; may be empty
  // Reads rows first to first + count - 1 as count * cols floats. Thread-safe. Throws Error (io), and
  // (invalid_argument) if a value is not finite.
  std::function<void(std::int64_t first, std::int64_t count, float* to)> read = {};
};

// The error of a layer's outputs over calibration rows: error and energy as in post_training.h.
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
  // Column i of the result is column order()[i] of the weights; empty: columns keep their places.
  virtual std::span<const std::int32_t> order() const { return {}; }
  // Encodes rows first to first + count - 1 to their streams; `w` has their weights in the original order of columns.
  // `to.global` is set by global_scale() and only read. Called once for every row, from several threads.
  virtual void encode(std::int64_t first, std::int64_t count, const float* w, MutableOperand to) const = 0;
  virtual float global_scale() const { return 1; }  // of formats that have one
  // The factors by which columns were multiplied before encoding, in the original order of columns; empty: none.
  virtual std::span<const float> input_scales() const { return {}; }
  virtual OutputError output_error() const { return {}; }
};

// An algorithm that turns a layer's weights into codes. Thread-safe.
class TILEWRIGHT_EXPORT LayerQuantizer {
 public:
  virtual ~LayerQuantizer() = default;
  virtual Format format() const = 0;
  virtual bool reorders() const { return false; }       // whether a layer's order() may have entries
  virtual bool scales_inputs() const { return false; }  // whether a layer's input_scales() may have entries
  // Called for every layer before the work starts; throws Error if the layer cannot be quantized.
  virtual void check(std::string_view name, std::int64_t rows, std::int64_t cols) const {
    static_cast<void>(name), static_cast<void>(rows), static_cast<void>(cols);
  }
  // One line with everything except the weights that affects results; results with another line are not resumed.
  virtual std::string identity() const = 0;
  // Called once for each layer, one layer at a time. May read all of the weights.
  virtual std::unique_ptr<QuantizedLayer> begin(const LayerWeights& weights) const = 0;
};

// FormatInfo::encode with the encoder of that name, or the format's first one if it is empty. Throws Error
// (invalid_argument), which names the encoders.
TILEWRIGHT_EXPORT std::unique_ptr<LayerQuantizer> round_to_nearest(Format format, std::string_view encoder = {});

// The algorithms of post_training.h, for layers whose inputs are in files: integer_formats() (format.h) only.
//
// `calibration` has .npy and .safetensors files, and folders of them, without subfolders. An array has the inputs of
// one layer, [rows, k] or with more leading dimensions, in single, double or half precision or bfloat16. Its name is
// the name of the layer's weight, with or without ".weight"; for a .npy file it is the file's name without .npy. If
// several files have arrays of the same name, their rows are combined. Arrays with other names are ignored.
struct PostTraining {
  Format format;
  std::string encoder = {};     // empty: the format's first
  std::string method = "gptq";  // gptq, awq, or rtn: rounding to nearest, with its error
  std::vector<std::string> calibration = {};
  bool fallback = false;  // layers without calibration data are rounded to nearest; else they are an Error
  GptqOptions gptq = {};
  AwqOptions awq = {};
  // If both are set, GPTQ of layers that fit the device's memory runs there (gptq.h), with the same bits. Set both or
  // none; they must outlive the quantizer.
  Engine* engine = nullptr;
  const Device* device = nullptr;
};
// Throws Error: invalid_argument for an unknown method, format or encoder, options out of range, no calibration data,
// or an invalid file; io. The quantizer's check() throws Error (invalid_argument) for a layer without calibration rows,
// or with arrays that are not k wide. Files are opened again when their layer is quantized; if a file has changed by
// then, this is an Error (io).
TILEWRIGHT_EXPORT std::unique_ptr<LayerQuantizer> post_training(const PostTraining& options);

// FormatInfo::encode_weighted: ggml's searches with an importance for each column. `files` are imatrix files
// of llama.cpp (.gguf), and .npy and .safetensors files with an array for each weight: the array has the weight's name,
// with or without ".weight", and one number from 0 to 1e15 for each column. With `fallback`, the encoder "ggml", or
// "plain" where there is none, encodes layers without importance; else check() throws Error for them. Throws Error:
// unsupported for a format without encode_weighted, invalid_argument for an invalid file; io.
TILEWRIGHT_EXPORT std::unique_ptr<LayerQuantizer> importance_weighted(Format format, std::span<const std::string> files,
                                                                      bool fallback = false);

struct QuantizePolicy {
  std::string format = {};
  std::string encoder = {};            // empty: the format's first
  std::string packing = {};            // of 4-bit formats in safetensors; empty: compressed_tensors
  std::vector<std::string> only = {};  // patterns of names
  std::vector<std::string> skip = {};
  const LayerQuantizer* quantizer = nullptr;  // null: round_to_nearest(format, encoder)
  bool resume = false;                        // continue OUTPUT.part; Error (invalid_argument) if this is impossible
  bool replace = false;                       // replace an existing output
  int threads = 0;                            // 0: one per core
  std::uint64_t sync_bytes = 64 << 20;        // of the input, after which the journal is updated
  // Called from one thread after each part of the work, with MiB of the input. If it throws, the work ends.
  std::function<void(std::string_view stage, int done, int total)> progress = {};
};

struct TILEWRIGHT_EXPORT TensorReport {
  std::string name = {};
  std::string type = {};  // as the input says: "BF16"
  bool quantized = false;
  std::string kept = {};  // why it is not quantized; empty if it is
  std::int64_t rows = 0, cols = 0;
  std::uint64_t bytes_before = 0, bytes_after = 0;
  double squares = 0, error_squares = 0;  // sums of squares over the elements, of the weight and of its error
  double max_error = 0;                   // the largest magnitude of an error
  OutputError output = {};                // if the quantizer has calibration data
  bool resumed = false;                   // its bytes come from an earlier run
  double relative_rms() const;            // sqrt(error_squares / squares); 0 for zeros
};

struct TILEWRIGHT_EXPORT QuantizeReport {
  std::vector<TensorReport> tensors = {};  // in the input's order
  std::uint64_t bytes_before = 0, bytes_after = 0;
  double relative_rms() const;  // of all quantized tensors together
  std::string config = {};      // JSON for loaders: what is in the file `config_path`; empty if none is needed
  std::string config_path = {};
};

TILEWRIGHT_EXPORT std::span<const char* const> kept_by_default();

// `inputs`: all safetensors files of one model, or their index (NAME.safetensors.index.json), or one GGUF file. For a
// safetensors output, a configuration for loaders is written into the metadata under "quantization_config", and into a
// file beside the output: quantize_config.json for gptq (GPTQModel, vLLM), quant_config.json for awq (AutoAWQ, vLLM),
// or quantization_config.json for compressed-tensors, an object to merge into the model's config.json.
// Throws Error: invalid_argument for an invalid policy or file, unsupported for a tensor that the output cannot store,
// too_large, io.
TILEWRIGHT_EXPORT QuantizeReport quantize_model(std::span<const std::string> inputs, const std::string& output,
                                                const QuantizePolicy& policy);
// Returns the same report, but without error figures, and writes nothing.
TILEWRIGHT_EXPORT QuantizeReport plan_quantization(std::span<const std::string> inputs, const std::string& output,
                                                   const QuantizePolicy& policy);

}  // namespace tilewright
