// SPDX-License-Identifier: Apache-2.0
#include "quantize/model/input.h"

#include <fmt/ranges.h>
#include <sys/stat.h>
#include <tilewright/error.h>
#include <tilewright/store.h>
#include <tilewright/text.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "quantize/model/journal.h"
#include "support/must_be.h"

namespace tilewright::quantize {
namespace {

constexpr std::uint64_t kIndexBytes = 100'000'000;

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == path.npos ? "" : path.substr(0, slash + 1);
}

// The files that an index names, and which tensor it says is in which.
std::unordered_map<std::string, std::string> read_index(const std::string& path) {
  const auto root = nlohmann::json::parse(read_text(path, kIndexBytes), nullptr, false);
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (!root.is_object() || map == root.end() || !map->is_object() || map->empty())
    throw must_be("file", path, "JSON with an object weight_map, of files by tensor");
  std::unordered_map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    const std::string value = file.is_string() ? file.get<std::string>() : std::string();
    if (value.empty() || value.find('/') != value.npos || value == "." || value == "..")
      throw must_be("weight_map '" + printable(name) + "'", printable(value),
                    "the name of a file in the index's folder");
    files.emplace(name, value);
  }
  return files;
}

std::vector<std::int64_t> reversed(std::vector<std::int64_t> dims) {
  std::reverse(dims.begin(), dims.end());
  return dims;
}

}  // namespace

std::int64_t InputTensor::rows() const {
  std::int64_t n = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
  return n;
}

Input::Input(std::span<const std::string> paths) {
  if (paths.empty()) throw Error(ErrorCode::invalid_argument, "input", "", "must have at least one file");
  std::unordered_map<std::string, std::string> index;
  for (const std::string& path : paths) {
    if (path.ends_with(".json")) {
      if (paths.size() > 1) throw must_be("input", path, "the only input: an index names the files");
      index = read_index(path);
      files_.push_back(path);
      std::set<std::string> files;
      for (const auto& [name, file] : index) files.insert(file);
      for (const std::string& file : files) add_safetensors(folder_of(path) + file);
      for (const auto& [name, file] : index)
        if (std::none_of(tensors_.begin(), tensors_.end(), [&, &n = name](const auto& t) { return t.name == n; }))
          throw must_be("weight_map '" + printable(name) + "'", printable(file), "a file with that tensor");
    } else if (path.ends_with(".gguf")) {
      if (paths.size() > 1)
        throw Error(ErrorCode::unsupported, "input", path, "must be the only input, as a GGUF file");
      add_gguf(path);
    } else {
      add_safetensors(path);
    }
  }
  std::unordered_set<std::string_view> seen;
  for (const InputTensor& t : tensors_) {
    if (!seen.insert(t.name).second)
      throw Error(ErrorCode::invalid_argument, "tensor name", printable(t.name), "occurs in two of the files");
    identity_ += fmt::format("{} {} {} [{}] {}\n", t.file, t.name, t.type, fmt::join(t.shape, ","), t.bytes);
  }
  if (tensors_.empty()) throw Error(ErrorCode::invalid_argument, "input", paths.front(), "has no tensors");
  identity_ = sha256_hex(identity_);
}

void Input::add_safetensors(const std::string& path) {
  safetensors_.push_back(Safetensors::open(path));
  const auto tensors = safetensors_.back().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const SafetensorsTensor& t = tensors[i];
    tensors_.push_back(
        {t.name, std::string(t.dtype), std::string(t.format), t.shape, t.bytes, safetensors_.size() - 1, i});
  }
  add_identity(path);
}

void Input::add_gguf(const std::string& path) {
  gguf_.push_back(Gguf::open(path));
  const auto tensors = gguf_.back().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const GgufTensor& t = tensors[i];
    tensors_.push_back({t.name, std::string(t.type_name), std::string(t.format), reversed(t.dims), t.bytes, 0, i});
  }
  add_identity(path);
}

void Input::add_identity(const std::string& path) {
  files_.push_back(path);
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0)
    throw Error(ErrorCode::io, "file", path, std::string("cannot be read: ") + std::strerror(errno));
  identity_ += fmt::format("{} {}.{:09}\n", info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

std::string Input::file_at(const std::string& path) const {
  std::error_code missing;
  const auto same = [&](const std::string& file) { return std::filesystem::equivalent(file, path, missing); };
  const auto it = std::find_if(files_.begin(), files_.end(), same);
  return it == files_.end() ? "" : *it;
}

void Input::read(const InputTensor& tensor, std::uint64_t first, std::span<std::byte> to) const {
  if (!gguf_.empty())
    gguf_.front().read(gguf_.front().tensors()[tensor.index], first, to);
  else
    safetensors_[tensor.file].read(safetensors_[tensor.file].tensors()[tensor.index], first, to);
}

std::vector<std::pair<std::string, std::string>> Input::metadata() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Safetensors& file : safetensors_)
    for (const auto& [key, value] : file.metadata())
      if (std::none_of(all.begin(), all.end(), [&, &k = key](const auto& had) { return had.first == k; }))
        all.emplace_back(key, value);
  return all;
}

}  // namespace tilewright::quantize
