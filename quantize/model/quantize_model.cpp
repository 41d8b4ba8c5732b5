// SPDX-License-Identifier: Apache-2.0
// tilewright/quantize_model.h: the plan, then tensor after tensor.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <tilewright/error.h>
#include <tilewright/quantize_model.h>
#include <tilewright/text.h>
#include <tilewright/version.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>

#include "quantize/model/input.h"
#include "quantize/model/journal.h"
#include "quantize/model/packer.h"
#include "support/must_be.h"
#include "support/threads.h"

namespace tilewright {
namespace {

using namespace quantize;

constexpr std::int64_t kChunkFloats = 1 << 18;  // that a thread has at a time
constexpr std::uint64_t kCopyBytes = 4 << 20;   // of a tensor that is copied
constexpr int kChunksPerThread = 4;             // between two writes

// Embeddings and heads, which lose most; norms; and what decides between experts.
constexpr const char* kKept[] = {"*embed*",       "*embd*",         "*.wte.*",      "*.wpe.*",       "*token_types*",
                                 "*norm*",        "*Norm*",         "*lm_head*",    "output.weight", "*router*",
                                 "*.gate.weight", "*ffn_gate_inp*", "shared.weight"};

const char* match(std::span<const std::string> patterns, const std::string& name) {
  for (const std::string& p : patterns)
    if (::fnmatch(p.c_str(), name.c_str(), 0) == 0) return p.c_str();
  return nullptr;
}
const char* match_default(const std::string& name) {
  for (const char* p : kKept)
    if (::fnmatch(p, name.c_str(), 0) == 0) return p;
  return nullptr;
}

void check_patterns(const char* field, std::span<const std::string> patterns, const Input& input) {
  for (const std::string& p : patterns)
    if (std::none_of(input.tensors().begin(), input.tensors().end(), [&](const InputTensor& t) {
          return match({&p, 1}, t.name);
        }))
      throw must_be(
          field, printable(p),
          fmt::format("a pattern that a tensor's name matches, such as '{}'", printable(input.tensors().front().name)));
}

// Why a tensor stays as it is, or "".
std::string kept(const InputTensor& t, const QuantizePolicy& policy, const Packer& packing) {
  if (const char* p = match(policy.skip, t.name)) return fmt::format("skipped by {}", p);
  if (!policy.only.empty() && !match(policy.only, t.name)) return "not asked for";
  if (std::string why = packing.unsuitable(t); !why.empty()) return why;
  const char* p = policy.only.empty() ? match_default(t.name) : nullptr;
  return p ? fmt::format("{} stays by default", p) : "";
}

struct Planned {
  const InputTensor* input = nullptr;
  std::vector<OutputTensor> outputs;
};

class Model {
 public:
  Model(std::span<const std::string> inputs, const std::string& output, const QuantizePolicy& policy)
      : policy_(policy),
        output_(output),
        container_(container_of(output)),
        input_(inputs),
        own_(policy.quantizer ? nullptr : round_to_nearest(Format::parse(policy.format), policy.encoder)),
        quantizer_(policy.quantizer ? *policy.quantizer : *own_),
        packer_(container_, quantizer_, policy.packing),
        threads_(policy.threads > 0 ? policy.threads
                                    : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) {
    plan();
    for (const std::string& path : {output_, output_ + ".part", journal_path(), report_.config_path})
      if (const std::string read = input_.file_at(path); !read.empty())
        throw Error(ErrorCode::invalid_argument, "output", path,
                    fmt::format("is the file {}, which is read; choose another", printable(read)));
  }

  QuantizeReport report() const { return report_; }

  QuantizeReport run() {
    check_outputs();
    if (policy_.resume && ::access((output_ + ".part").c_str(), F_OK) != 0)
      throw Error(ErrorCode::invalid_argument, "resume", output_ + ".part",
                  "does not exist: nothing was begun, or it is finished");
    std::unique_ptr<ModelWriter> writer = open_writer();
    const std::string options =
        fmt::format("{}; {}; {}", quantizer_.identity(), packer_.text(), TILEWRIGHT_VERSION_STRING);
    Journal journal(journal_path(), input_.identity(), options, policy_.resume);
    journal_ = &journal;
    writer_ = writer.get();
    kept_part_ = policy_.resume;
    try {
      for (std::size_t i = 0; i < planned_.size(); ++i) work(planned_[i], report_.tensors[i]);
      if (!report_.config.empty()) write_text(report_.config_path, report_.config + "\n");
      writer->finish();
    } catch (...) {
      if (kept_part_) try_flush();
      if (!kept_part_) journal.remove();
      throw;
    }
    journal.remove();
    return report_;
  }

 private:
  std::string journal_path() const { return output_ + ".part.journal"; }

  void plan() {
    check_patterns("only", policy_.only, input_);
    check_patterns("skip", policy_.skip, input_);
    std::vector<std::string> modules;
    bool any = false;
    for (const InputTensor& t : input_.tensors()) {
      TensorReport r;
      r.name = t.name;
      r.type = t.type;
      r.rows = t.rows();
      r.cols = t.cols();
      r.bytes_before = t.bytes;
      r.kept = kept(t, policy_, packer_);
      r.quantized = r.kept.empty();
      any |= r.quantized;
      if (r.quantized) quantizer_.check(t.name, t.rows(), t.cols());
      planned_.push_back({&t, r.quantized ? packer_.outputs(t) : std::vector{packer_.copied(t)}});
      constexpr std::string_view kWeight = ".weight";
      if (!r.quantized && t.shape.size() == 2 && t.name.ends_with(kWeight))
        modules.push_back(t.name.substr(0, t.name.size() - kWeight.size()));
      report_.bytes_before += t.bytes;
      report_.tensors.push_back(std::move(r));
    }
    if (!any) {
      const TensorReport& first = report_.tensors.front();
      throw Error(
          ErrorCode::invalid_argument, "input", fmt::format("{} tensors", report_.tensors.size()),
          fmt::format("must have at least one that is quantized; '{}' is kept: {}", printable(first.name), first.kept));
    }
    std::sort(modules.begin(), modules.end());
    report_.config = packer_.config(modules);
    if (!report_.config.empty()) {
      const auto slash = output_.rfind('/');
      report_.config_path = (slash == output_.npos ? "" : output_.substr(0, slash + 1)) + packer_.config_file();
    }
    for (std::size_t i = 0; i < planned_.size(); ++i) {
      report_.tensors[i].bytes_after = bytes_after(planned_[i]);
      report_.bytes_after += report_.tensors[i].bytes_after;
    }
  }

  // Of formats: what a tensor's outputs have together.
  std::uint64_t bytes_after(const Planned& p) const {
    if (p.outputs.size() == 1 && p.outputs[0].name == p.input->name && !report_of(p).quantized) return p.input->bytes;
    std::uint64_t bytes = 0;
    for (const OutputTensor& o : p.outputs) {
      std::int64_t elements = 1;
      for (const std::int64_t extent : o.shape) elements *= extent;
      const auto size = [&](std::string_view type) -> std::uint64_t {
        return type == "I64" ? 8 : type == "I32" || type == "F32" ? 4 : type == "F16" || type == "BF16" ? 2 : 1;
      };
      bytes += container_ == Container::gguf
                   ? static_cast<std::uint64_t>(quantizer_.format().total_bytes(p.input->rows(), p.input->cols()))
                   : static_cast<std::uint64_t>(elements) * size(o.type);
    }
    return bytes;
  }
  const TensorReport& report_of(const Planned& p) const {
    return report_.tensors[static_cast<std::size_t>(&p - planned_.data())];
  }

  void check_outputs() const {
    const auto check = [&](const std::string& path, const std::string& content) {
      if (path.empty() || policy_.replace || ::access(path.c_str(), F_OK) != 0) return;
      if (!content.empty() && read_text(path, 1 << 30) == content) return;
      throw Error(ErrorCode::invalid_argument, "output", path, "exists; ask for it to be replaced, or choose another");
    };
    check(output_, "");
    check(report_.config_path, report_.config + "\n");
  }

  std::unique_ptr<ModelWriter> open_writer() const {
    const auto start = policy_.resume ? ModelWriter::Start::resume : ModelWriter::Start::create;
    if (container_ == Container::safetensors) {
      std::vector<SafetensorsInfo> infos;
      for (const Planned& p : planned_)
        for (const OutputTensor& o : p.outputs) infos.push_back({o.name, o.type, o.shape});
      auto metadata = input_.metadata();
      const auto set = [&](const char* key, const std::string& value) {
        std::erase_if(metadata, [&](const auto& had) { return had.first == key; });
        metadata.emplace_back(key, value);
      };
      set("format", "pt");  // without which transformers refuses it
      if (!report_.config.empty()) set("quantization_config", report_.config);
      return std::make_unique<SafetensorsWriter>(output_, std::move(infos), metadata, start);
    }
    std::vector<GgufInfo> infos;
    for (const Planned& p : planned_)
      for (const OutputTensor& o : p.outputs)
        infos.push_back({o.name, {o.shape.rbegin(), o.shape.rend()}, *gguf_type(o.type)});
    std::vector<GgufField> fields;
    if (const Gguf* gguf = input_.gguf())
      for (const auto& [key, value] : gguf->metadata())
        if (key != "general.file_type" && key != "general.quantization_version") fields.push_back(gguf->field(key));
    fields.push_back(GgufField::u32("general.quantization_version", 2));  // GGML_QNT_VERSION
    return std::make_unique<GgufWriter>(output_, infos, fields, start);
  }

  void work(const Planned& p, TensorReport& r) {
    const auto done = journal_->done().find(r.name);
    if (done != journal_->done().end() && intact(p, done->second)) {
      for (const OutputTensor& o : p.outputs) writer_->skip(o.name);
      r.squares = done->second.squares;
      r.error_squares = done->second.error_squares;
      r.max_error = done->second.max_error;
      r.output = done->second.output;
      r.resumed = true;
      progress(r.name, r.bytes_before);
      return;
    }
    digests_.clear();
    if (r.quantized)
      encode(*p.input, r);
    else
      copy(p);
    Done now{{}, r.squares, r.error_squares, r.max_error, r.output};
    for (const OutputTensor& o : p.outputs) now.outputs.emplace_back(o.name, digests_[o.name].hex());
    journal_->add(r.name, now);
    unsynced_ += r.bytes_before;
    if (unsynced_ >= policy_.sync_bytes) flush();
  }

  // Whether .part has the bytes that were hashed when the tensor was done.
  bool intact(const Planned& p, const Done& done) const {
    if (done.outputs.size() != p.outputs.size()) return false;
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < p.outputs.size(); ++i) {
      const std::string& name = p.outputs[i].name;
      if (done.outputs[i].first != name) return false;
      Digest digest;
      const std::uint64_t all = writer_->bytes(name);
      for (std::uint64_t first = 0; first < all; first += kCopyBytes) {
        bytes.resize(static_cast<std::size_t>(std::min(kCopyBytes, all - first)));
        writer_->read(name, first, bytes);
        digest.update(bytes);
      }
      if (digest.hex() != done.outputs[i].second) return false;
    }
    return true;
  }

  void write(const std::string& name, std::span<const std::byte> bytes) {
    digests_[name].update(bytes);
    writer_->write(name, bytes);
  }

  void copy(const Planned& p) {
    std::vector<std::byte> bytes;
    digests_[p.outputs[0].name];  // also of a tensor without elements
    for (std::uint64_t first = 0; first < p.input->bytes; first += kCopyBytes) {
      bytes.resize(static_cast<std::size_t>(std::min(kCopyBytes, p.input->bytes - first)));
      input_.read(*p.input, first, bytes);
      write(p.outputs[0].name, bytes);
      progress(p.input->name, bytes.size());
    }
  }

  void read_floats(const InputTensor& t, std::int64_t first, std::int64_t count, float* to) const {
    const Format format = Format::parse(t.format);
    const std::int64_t row = format.stream_bytes(0, 1, t.cols());
    std::vector<std::byte> bytes(static_cast<std::size_t>(count * row));
    input_.read(t, static_cast<std::uint64_t>(first * row), bytes);
    format.info().decode({bytes.data(), nullptr, nullptr}, count, t.cols(), to);
    for (std::int64_t i = 0; i < count * t.cols(); ++i)
      if (!std::isfinite(to[i]))
        throw must_be(fmt::format("tensor '{}' [{}, {}]", printable(t.name), first + i / t.cols(), i % t.cols()),
                      fmt::format("{}", to[i]), "a finite number; or skip this tensor, which copies it");
  }

  struct Chunk {
    std::int64_t first = 0, rows = 0;
    std::vector<std::byte> streams[3];
    double squares = 0, error_squares = 0, max_error = 0;
  };

  void encode(const InputTensor& t, TensorReport& r) {
    const std::int64_t cols = t.cols(), rows = std::clamp<std::int64_t>(kChunkFloats / cols, 1, t.rows());
    const LayerWeights weights{t.name,
                               t.rows(),
                               cols,
                               threads_,
                               [&](std::string_view what) { stage(t.name, what); },
                               [&](std::int64_t first, std::int64_t n, float* to) { read_floats(t, first, n, to); }};
    const auto layer = quantizer_.begin(weights);
    r.output = layer->output_error();
    const auto sink = packer_.sink(t, *layer, [&](const std::string& n, std::span<const std::byte> b) { write(n, b); });
    float global = layer->global_scale();
    std::vector<Chunk> chunks(static_cast<std::size_t>(threads_ * kChunksPerThread));
    for (std::int64_t first = 0; first < t.rows();) {
      std::size_t used = 0;
      std::int64_t bytes = 0;
      for (; used < chunks.size() && first < t.rows(); ++used) {
        chunks[used].first = first;
        chunks[used].rows = std::min(rows, t.rows() - first);
        first += chunks[used].rows;
        bytes += chunks[used].rows * format_bytes(t) * cols;
      }
      parallel(threads_, used, [&](std::size_t i) { encode_chunk(t, *layer, global, chunks[i]); });
      for (std::size_t i = 0; i < used; ++i) {
        Chunk& c = chunks[i];
        sink->rows(c.rows, streams(c, global));
        r.squares += c.squares;
        r.error_squares += c.error_squares;
        r.max_error = std::max(r.max_error, c.max_error);
      }
      progress(t.name, static_cast<std::uint64_t>(bytes));
    }
    sink->end();
  }
  static std::int64_t format_bytes(const InputTensor& t) { return t.format == "f32" ? 4 : 2; }

  MutableOperand streams(Chunk& c, float& global) const {
    MutableOperand at;
    const auto specs = quantizer_.format().info().streams;
    for (std::size_t i = 0; i < specs.size(); ++i)
      at.set(specs[i].stream, specs[i].scope == Scope::tensor ? static_cast<void*>(&global) : c.streams[i].data());
    return at;
  }

  void encode_chunk(const InputTensor& t, const QuantizedLayer& layer, float& global, Chunk& c) const {
    const Format format = quantizer_.format();
    const auto count = static_cast<std::size_t>(c.rows * t.cols());
    std::vector<float> weights(count), decoded(count);
    read_floats(t, c.first, c.rows, weights.data());
    const auto specs = format.info().streams;
    for (std::size_t i = 0; i < specs.size(); ++i)
      if (specs[i].scope != Scope::tensor)
        c.streams[i].assign(static_cast<std::size_t>(format.stream_bytes(static_cast<int>(i), c.rows, t.cols())), {});
    const MutableOperand to = streams(c, global);
    layer.encode(c.first, c.rows, weights.data(), to);
    format.info().decode(to, c.rows, t.cols(), decoded.data());
    const auto order = layer.order();
    const auto input_scales = layer.input_scales();
    c.squares = c.error_squares = c.max_error = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t col = i % static_cast<std::size_t>(t.cols());
      const std::size_t column = order.empty() ? col : static_cast<std::size_t>(order[col]);
      const double w = weights[i - col + column];
      const double factor = input_scales.empty() ? 1.0 : input_scales[column];
      const double error = static_cast<double>(decoded[i]) / factor - w;
      if (!std::isfinite(error))
        throw Error(
            ErrorCode::unsupported,
            fmt::format("tensor '{}' row {}", printable(t.name), c.first + static_cast<std::int64_t>(i) / t.cols()),
            fmt::format("{}", w),
            fmt::format("is too large for {}; skip this tensor, or choose another format", format.name()));
      c.squares += w * w;
      c.error_squares += error * error;
      c.max_error = std::max(c.max_error, std::fabs(error));
    }
  }

  void flush() {
    writer_->sync();
    journal_->flush();
    unsynced_ = 0;
    if (!kept_part_) writer_->keep_part();
    kept_part_ = true;
  }
  void try_flush() noexcept {  // after an error, which is what is reported
    try {
      flush();
    } catch (...) {
    }
  }

  void progress(std::string_view name, std::uint64_t bytes) {
    done_ += bytes;
    stage(name, "");
  }
  void stage(std::string_view name, std::string_view what) {
    const auto mib = [](std::uint64_t b) { return static_cast<int>((b + (1 << 20) - 1) >> 20); };
    if (policy_.progress)
      policy_.progress(fmt::format("MiB, {}{}{}", name, what.empty() ? "" : ": ", what), mib(done_),
                       mib(report_.bytes_before));
  }

  const QuantizePolicy& policy_;
  std::string output_;
  Container container_;
  Input input_;
  std::unique_ptr<LayerQuantizer> own_;
  const LayerQuantizer& quantizer_;
  Packer packer_;
  int threads_;
  std::vector<Planned> planned_;
  QuantizeReport report_;

  ModelWriter* writer_ = nullptr;
  Journal* journal_ = nullptr;
  std::map<std::string, Digest> digests_;  // of the tensor in work
  std::uint64_t unsynced_ = 0, done_ = 0;
  bool kept_part_ = false;
};

double root(double errors, double all) { return all > 0 ? std::sqrt(errors / all) : 0; }

}  // namespace

double TensorReport::relative_rms() const { return root(error_squares, squares); }

double QuantizeReport::relative_rms() const {
  double errors = 0, all = 0;
  for (const TensorReport& t : tensors) errors += t.error_squares, all += t.squares;
  return root(errors, all);
}

std::span<const char* const> kept_by_default() { return kKept; }

QuantizeReport quantize_model(std::span<const std::string> inputs, const std::string& output,
                              const QuantizePolicy& policy) {
  return Model(inputs, output, policy).run();
}

QuantizeReport plan_quantization(std::span<const std::string> inputs, const std::string& output,
                                 const QuantizePolicy& policy) {
  return Model(inputs, output, policy).report();
}

}  // namespace tilewright
