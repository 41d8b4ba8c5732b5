// SPDX-License-Identifier: Apache-2.0
#include "quantize/layers/activations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <tilewright/error.h>
#include <tilewright/store.h>
#include <tilewright/text.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "quantize/rounding/rounding.h"
#include "support/in_file.h"
#include "support/must_be.h"

namespace tilewright::quantize {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPieceRows = 256;          // a Hessian's sums depend on which rows are added together
constexpr std::int64_t kPieceElements = 1 << 22;  // about as many are in memory
constexpr std::size_t kMostNames = 8;             // in an error

bool is_array_file(const std::string& path) { return path.ends_with(".npy") || path.ends_with(".safetensors"); }

std::int64_t size_of(const std::string& format) { return format == "f64" ? 8 : format == "f32" ? 4 : 2; }

}  // namespace

std::int64_t Activations::Array::rows(std::int64_t cols) const {
  std::int64_t elements = 1;  // readers have seen that the bytes are those of the shape
  for (const std::int64_t extent : shape) elements *= extent;
  return elements / cols;
}

Activations::Activations(std::span<const std::string> paths) {
  for (const std::string& path : paths)
    if (std::error_code ignored; fs::is_directory(path, ignored))
      add_folder(path);
    else
      add_file(path);
  if (arrays_.empty())
    throw Error(ErrorCode::invalid_argument, "calibration", fmt::format("{}", fmt::join(paths, " ")),
                "must have at least one array of floats, in .npy or .safetensors files or folders of such");
  identity_ = sha256_hex(identity_);
}

void Activations::add_folder(const std::string& path) {
  std::vector<std::string> files;
  std::error_code failure;
  for (fs::directory_iterator at(path, failure), end; !failure && at != end; at.increment(failure))
    if (is_array_file(at->path().string())) files.push_back(at->path().string());
  if (failure) throw Error(ErrorCode::io, "calibration", path, "cannot be read: " + failure.message());
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) add_file(file);
}

void Activations::add_file(const std::string& path) {
  if (path.ends_with(".npy")) {
    const Npy npy = in_file(path, [&] { return Npy::open(path); });
    add(fs::path(path).stem().string(),
        {path, npy.format().empty() ? "f64" : std::string(npy.format()), npy.shape(), nullptr, nullptr});
  } else if (path.ends_with(".safetensors")) {
    const auto model = in_file(path, [&] { return std::make_shared<const Safetensors>(Safetensors::open(path)); });
    for (const SafetensorsTensor& t : model->tensors())
      if (t.dtype == "F64" || t.dtype == "F32" || t.dtype == "F16" || t.dtype == "BF16")
        add(t.name, {path, t.dtype == "F64" ? "f64" : std::string(t.format), t.shape, model, &t});
  } else {
    throw must_be("calibration", path, "a folder or end in .npy or .safetensors");
  }
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0)
    throw Error(ErrorCode::io, "calibration", path, std::string("cannot be read: ") + std::strerror(errno));
  identity_ += fmt::format("{} {}.{:09}\n", info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

void Activations::add(std::string name, Array array) {
  identity_ += fmt::format("{} {} [{}]\n", name, array.format, fmt::join(array.shape, ","));
  arrays_[std::string(layer_of(name))].push_back(std::move(array));
}

const std::vector<Activations::Array>* Activations::find(std::string_view tensor) const {
  const auto found = arrays_.find(layer_of(tensor));
  return found == arrays_.end() ? nullptr : &found->second;
}

bool Activations::has(std::string_view tensor, std::int64_t cols) const {
  const auto* arrays = find(tensor);
  if (!arrays) return false;
  std::int64_t rows = 0;
  for (const Array& a : *arrays) {
    if (a.shape.empty() || a.shape.back() != cols)
      throw Error(ErrorCode::invalid_argument, fmt::format("calibration of '{}', {}", printable(tensor), a.file),
                  fmt::format("[{}]", fmt::join(a.shape, ", ")),
                  fmt::format("must have rows of {}, which is as wide as the layer's weight", cols));
    rows += a.rows(cols);
  }
  return rows > 0;
}

std::string Activations::names() const {
  std::string all;
  std::size_t count = 0;
  for (const auto& [name, arrays] : arrays_) {
    if (count++ == kMostNames) return fmt::format("{} and {} more", all, arrays_.size() - kMostNames);
    all += (all.empty() ? "" : ", ") + printable(name);
  }
  return all;
}

Hessian Activations::hessian(std::string_view tensor, std::int64_t cols, int threads,
                             const std::function<void(std::int64_t)>& step) const {
  Hessian hessian(cols);
  for (const Array& a : *find(tensor)) in_file(a.file, [&] { add_rows(hessian, a, threads, step); });
  return hessian;
}

void Activations::add_rows(Hessian& to, const Array& a, int threads, const std::function<void(std::int64_t)>& step) {
  std::optional<Npy> npy;
  if (!a.model) {
    npy.emplace(Npy::open(a.file));
    if (npy->shape() != a.shape || (npy->format().empty() ? "f64" : npy->format()) != a.format)
      throw Error(ErrorCode::io, "calibration", a.file, "changed while the model was quantized");
  }
  const std::int64_t cols = to.k(), rows = a.rows(cols), row_bytes = cols * size_of(a.format);
  const std::int64_t most = std::max<std::int64_t>(kPieceElements / cols / kPieceRows, 1) * kPieceRows;
  std::vector<std::byte> bytes;
  std::vector<float> narrow;
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t count = std::min(most, rows - first);
    bytes.resize(static_cast<std::size_t>(count * row_bytes));
    const auto offset = static_cast<std::uint64_t>(first * row_bytes);
    if (npy)
      npy->read(offset, bytes);
    else
      a.model->read(*a.tensor, offset, bytes);
    if (a.format == "f64") {
      narrow.resize(bytes.size() / sizeof(double));
      for (std::size_t i = 0; i < narrow.size(); ++i) {
        double v = 0;
        std::memcpy(&v, bytes.data() + i * sizeof v, sizeof v);
        narrow[i] = static_cast<float>(v);
      }
      to.add(Format::parse("f32"), narrow.data(), count, cols, threads);
    } else {
      to.add(Format::parse(a.format), bytes.data(), count, cols, threads);
    }
    step(to.rows());
  }
}

}  // namespace tilewright::quantize
