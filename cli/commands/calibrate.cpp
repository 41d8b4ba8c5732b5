// SPDX-License-Identifier: Apache-2.0
// calibrate: the ranges, scales and zero points of tensors in .npy and .safetensors files.
#include <fmt/format.h>
#include <fnmatch.h>
#include <tilewright/calibration.h>
#include <tilewright/npy.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "cli/command.h"
#include "cli/output_file.h"
#include "cli/picture.h"

namespace tilewright::cli {
namespace {

constexpr std::uint64_t kChunkElements = std::uint64_t{1} << 20;  // elements in memory at once
constexpr std::size_t kMostChannelLines = 16;                     // of the table, for a tensor's channels

struct CalibrateArgs {
  std::vector<std::string> files;
  std::string tensor, method = "min-max", target = "int8", out, plot;
  double percentile = 99.9, momentum = 0.9;
  int bits = 8, axis = 0;
  bool symmetric = false, asymmetric = false, markdown = false;
  CLI::Option *percentile_given = nullptr, *momentum_given = nullptr, *bits_given = nullptr, *axis_given = nullptr;
};

// One array of one file. Those of a name are batches of one tensor.
struct FileArray {
  std::string file, format;  // "" of doubles
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  std::shared_ptr<const Safetensors> model;  // none: the file is a .npy
  const SafetensorsTensor* tensor = nullptr;

  std::uint64_t size() const { return format.empty() ? 8 : format == "f32" ? 4 : 2; }
  std::uint64_t elements() const { return bytes / size(); }
  int chunks() const {
    return static_cast<int>(std::min<std::uint64_t>((elements() + kChunkElements - 1) / kChunkElements, 1 << 20));
  }
};

struct NamedTensor {
  std::string name;
  std::vector<FileArray> arrays;
};

struct CalibrationInputs {
  std::vector<NamedTensor> tensors;
  void add(const std::string& name, FileArray array) {
    const auto [at, fresh] = places.emplace(name, tensors.size());
    if (fresh) tensors.push_back({name, {}});
    tensors[at->second].arrays.push_back(std::move(array));
  }

 private:
  std::map<std::string, std::size_t> places;
};

bool is_float_dtype(std::string_view dtype) {
  return dtype == "F16" || dtype == "BF16" || dtype == "F32" || dtype == "F64";
}

// An error of a file's contents says which file.
template <class Action>
auto in_file(const std::string& what, Action&& action) {
  try {
    return action();
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;  // has the path
    throw Error(e.code(), what + ": " + e.field(), e.value(), e.allowed());
  }
}

CalibrationInputs inputs_of(const CalibrateArgs& args) {
  CalibrationInputs inputs;
  std::string npy_name, others;
  for (const std::string& file : args.files) {
    if (file.ends_with(".npy")) {
      if (npy_name.empty()) npy_name = std::filesystem::path(file).stem().string();
      const Npy npy = in_file(file, [&] { return Npy::open(file); });
      inputs.add(npy_name, {file, std::string(npy.format()), npy.shape(), npy.bytes(), nullptr, nullptr});
    } else if (file.ends_with(".safetensors")) {
      const auto model = in_file(file, [&] { return std::make_shared<const Safetensors>(Safetensors::open(file)); });
      for (const SafetensorsTensor& t : model->tensors()) {
        const bool wanted = args.tensor.empty() || ::fnmatch(args.tensor.c_str(), t.name.c_str(), 0) == 0;
        if (wanted && is_float_dtype(t.dtype))
          inputs.add(t.name, {file, std::string(t.format), t.shape, t.bytes, model, &t});
        else if (others.size() < 400)
          others += fmt::format("{}{} ({})", others.empty() ? "" : ", ", t.name, t.dtype);
      }
    } else {
      throw Error(ErrorCode::invalid_argument, "FILE", file, "must end in .npy or .safetensors");
    }
  }
  if (inputs.tensors.empty())
    throw Error(
        ErrorCode::invalid_argument, "--tensor", args.tensor,
        fmt::format("must match a tensor of F16, BF16, F32 or F64; there are: {}", others.empty() ? "none" : others));
  return inputs;
}

struct ChannelAxis {
  std::int64_t channels = 1, inner = 1;
};

ChannelAxis axis_of(const FileArray& a, const CalibrateArgs& args) {
  if (args.axis_given->count() == 0) return {};
  const auto rank = static_cast<int>(a.shape.size());
  const int axis = args.axis < 0 ? args.axis + rank : args.axis;
  if (axis < 0 || axis >= rank)
    throw Error(ErrorCode::invalid_argument, "--channels", std::to_string(args.axis),
                rank == 0 ? "must be left out: the array is one element"
                          : fmt::format("must be one of the array's {} axes: {} to {}", rank, -rank, rank - 1));
  ChannelAxis found{a.shape[static_cast<std::size_t>(axis)], 1};
  if (a.elements() == 0) return found;  // its extents are any that have a 0 among them
  for (auto i = static_cast<std::size_t>(axis) + 1; i < a.shape.size(); ++i) found.inner *= a.shape[i];
  return found;
}

void observe_array(Observer& observer, const FileArray& a, const ChannelAxis& axis, const std::function<void()>& step) {
  std::optional<Npy> npy;
  if (!a.model) {
    npy.emplace(Npy::open(a.file));
    if (npy->bytes() != a.bytes || npy->shape() != a.shape || npy->format() != a.format)
      throw Error(ErrorCode::io, "file", a.file, "changed while it was read");
  }
  std::vector<std::byte> bytes;
  for (std::uint64_t first = 0; first < a.elements(); first += kChunkElements) {
    bytes.resize(static_cast<std::size_t>(std::min(kChunkElements, a.elements() - first) * a.size()));
    if (npy)
      npy->read(first * a.size(), bytes);
    else
      a.model->read(*a.tensor, first * a.size(), bytes);
    const auto index = static_cast<std::int64_t>(first);
    if (a.format.empty()) {
      std::vector<double> wide(bytes.size() / sizeof(double));
      std::memcpy(wide.data(), bytes.data(), bytes.size());
      std::vector<float> narrow;
      for (const double v : wide) narrow.push_back(static_cast<float>(v));
      observer.observe(narrow, index, axis.inner);
    } else {
      observer.observe(Format::parse(a.format), bytes, index, axis.inner);
    }
    step();
  }
  observer.end_batch();
}

struct Calibrated {
  std::string name;
  std::size_t arrays = 0;
  std::vector<Observation> seen;  // without histograms
  std::vector<ClipRange> clips;
  std::vector<ScaleAndZero> scales;
};

Json json_of(const Calibrated& r) {
  Json min = Json::array(), max = min, count = min, nans = min, low = min, high = min, scale = min, zero = min;
  for (std::size_t i = 0; i < r.clips.size(); ++i) {
    count.push_back(r.seen[i].count), nans.push_back(r.seen[i].nans);
    min.push_back(r.seen[i].min), max.push_back(r.seen[i].max);
    low.push_back(r.clips[i].min), high.push_back(r.clips[i].max);
    scale.push_back(r.scales[i].scale), zero.push_back(r.scales[i].zero_point);
  }
  return {{"name", r.name}, {"arrays", r.arrays}, {"count", count},   {"nans", nans},   {"min", min},
          {"max", max},     {"clip_min", low},    {"clip_max", high}, {"scale", scale}, {"zero_point", zero}};
}

Json json_of(const std::vector<Calibrated>& results, const Calibration& how, const CalibrateArgs& args) {
  Json all{{"method", name_of(how.method)}};
  if (how.method == CalibrationMethod::percentile) all["percentile"] = how.percentile;
  if (how.method == CalibrationMethod::moving_average) all["momentum"] = args.momentum;
  all["target"] = how.target.name();
  all["symmetric"] = how.symmetry == Symmetry::symmetric;
  all["axis"] = args.axis_given->count() ? Json(args.axis) : Json();
  all["tensors"] = Json::array();
  for (const Calibrated& r : results) all["tensors"].push_back(json_of(r));
  return all;
}

Table calibration_table(const std::vector<Calibrated>& results, bool channels) {
  std::vector<std::string> head = {"tensor", "values", "NaN", "min", "max", "clip min", "clip max", "scale", "zero"};
  if (channels) head.insert(head.begin() + 1, "channel");
  Table t(head);
  for (const Calibrated& r : results)
    for (std::size_t i = 0; i < r.clips.size(); ++i) {
      if (i == kMostChannelLines) {
        t.add({r.name, "...", fmt::format("{} more channels; --json has all", r.clips.size() - i)});
        break;
      }
      const auto number = [](double v) { return fmt::format("{:.6g}", v); };
      std::vector<std::string> row = {r.name,
                                      std::to_string(r.seen[i].count),
                                      std::to_string(r.seen[i].nans),
                                      number(r.seen[i].min),
                                      number(r.seen[i].max),
                                      number(r.clips[i].min),
                                      number(r.clips[i].max),
                                      number(r.scales[i].scale),
                                      std::to_string(r.scales[i].zero_point)};
      if (channels) row.insert(row.begin() + 1, std::to_string(i));
      t.add(std::move(row));
    }
  return t;
}

Calibration calibration_of(const CalibrateArgs& args) {
  Calibration how;
  how.method = parse_calibration_method(args.method);
  how.percentile = args.percentile;
  how.target = CalibrationTarget::parse(args.bits_given->count() ? fmt::format("int{}", args.bits) : args.target);
  how.symmetry = args.asymmetric ? Symmetry::asymmetric : Symmetry::symmetric;
  const auto only_for = [&](const CLI::Option* option, CalibrationMethod method) {
    if (option->count() && how.method != method)
      throw Error(ErrorCode::invalid_argument, option->get_name(), option->results().front(),
                  fmt::format("is for --method {}, not {}", name_of(method), args.method));
  };
  only_for(args.percentile_given, CalibrationMethod::percentile);
  only_for(args.momentum_given, CalibrationMethod::moving_average);
  return how;
}

// Numbers out of range are refused before any file is read: the library refuses them for any data.
void check_numbers(const Calibration& how, double momentum) {
  Observer one({.bins = 256, .momentum = momentum});
  one.observe(std::vector<float>{1});
  one.end_batch();
  clip_ranges(one, how);
}

int run_calibrate(const Context& context, const CalibrateArgs& args) {
  const Calibration how = calibration_of(args);
  check_numbers(how, args.momentum);
  refuse_input("--out", args.out, args.files);
  refuse_input("--plot", args.plot, args.files);
  const CalibrationInputs inputs = inputs_of(args);
  if (!args.plot.empty() && inputs.tensors.size() != 1)
    throw Error(ErrorCode::invalid_argument, "--plot", args.plot,
                fmt::format("draws one tensor, and there are {}: choose one by --tensor", inputs.tensors.size()));
  need_pictures("--plot", args.plot);
  const bool counts = !args.plot.empty() ||
                      (how.method != CalibrationMethod::min_max && how.method != CalibrationMethod::moving_average);
  std::int64_t total = 0, done = 0;
  for (const NamedTensor& t : inputs.tensors)
    for (const FileArray& a : t.arrays) total += a.chunks();
  const auto steps = [](std::int64_t n) { return static_cast<int>(std::min<std::int64_t>(n, INT32_MAX)); };
  const Progress progress;

  std::vector<Calibrated> results;
  for (const NamedTensor& t : inputs.tensors) {
    const auto where = [&](const FileArray& a) {
      return a.model ? fmt::format("{}: tensor '{}'", a.file, t.name) : a.file;
    };
    const FileArray& first = t.arrays.front();
    Observer observer = in_file(where(first), [&] {
      return Observer(
          {.channels = axis_of(first, args).channels, .bins = counts ? 2048 : 0, .momentum = args.momentum});
    });
    for (const FileArray& a : t.arrays)
      in_file(where(a), [&] {
        const ChannelAxis axis = axis_of(a, args);
        if (axis.channels != observer.options().channels)
          throw Error(ErrorCode::invalid_argument, "channels", std::to_string(axis.channels),
                      fmt::format("must be {}, as in {}", observer.options().channels, first.file));
        observe_array(observer, a, axis, [&] { progress("reading", steps(++done), steps(total)); });
      });
    Calibrated r{t.name, t.arrays.size(), {}, {}, {}};
    r.clips = in_file(where(first), [&] { return clip_ranges(observer, how); });
    for (const ClipRange& clip : r.clips) r.scales.push_back(scale_for(clip, how.target, how.symmetry));
    for (Observation o : observer.channels()) {
      o.negative.clear(), o.positive.clear();
      r.seen.push_back(std::move(o));
    }
    if (!args.plot.empty()) {
      const Observation seen = observer.total();
      ClipRange clip = r.clips.front();
      for (const ClipRange& c : r.clips) clip = {std::min(clip.min, c.min), std::max(clip.max, c.max)};
      write_picture(
          "--plot", args.plot,
          Json{{"tensor", t.name},
               {"how", fmt::format("{} values, {} to {}, {}{}; tilewright {}", seen.count, name_of(how.method),
                                   how.target.name(), args.asymmetric ? "asymmetric" : "symmetric",
                                   r.clips.size() > 1 ? fmt::format(", the widest of {} channels", r.clips.size()) : "",
                                   TILEWRIGHT_VERSION_STRING)},
               {"count", seen.count},
               {"min", seen.min},
               {"max", seen.max},
               {"clip", {clip.min, clip.max}},
               {"bin_width", std::ldexp(1.0, seen.exponent)},
               {"negative", seen.negative},
               {"positive", seen.positive}});
    }
    results.push_back(std::move(r));
  }
  const Json all = json_of(results, how, args);
  if (!args.out.empty()) write_whole("--out", args.out, all.dump(2, ' ', true, Json::error_handler_t::replace) + "\n");
  const Table lines = calibration_table(results, args.axis_given->count() > 0);
  if (context.json)
    print_json(all);
  else
    print(args.markdown ? lines.markdown() : lines.text());
  return kOk;
}

}  // namespace

void add_calibrate(Context& context) {
  const auto args = std::make_shared<CalibrateArgs>();
  CLI::App* command = add_command(context, *context.app, "calibrate",
                                  "Choose ranges, scales and zero points from tensors in .npy and .safetensors files");
  command->add_option("files", args->files, "Arrays; all .npy files are batches of one tensor, named after the first")
      ->type_name("FILE")
      ->required()
      ->check(not_empty());
  command
      ->add_option("--tensor", args->tensor, "Which tensors of safetensors files, * and ? for any text (default: all)")
      ->type_name("PATTERN")
      ->check(not_empty());
  command->add_option("--method", args->method, "min-max, moving-average, percentile, entropy or mse")
      ->type_name("METHOD");
  args->percentile_given =
      command->add_option("--percentile", args->percentile, "Of percentile, in (0, 100] (default: 99.9)");
  args->momentum_given = command->add_option(
      "--momentum", args->momentum, "Of moving-average, in [0, 1): what a batch leaves of the average (default: 0.9)");
  CLI::Option* to =
      command->add_option("--to", args->target, "int2 to int8, uint2 to uint8, e4m3, e5m2 or e2m1 (default: int8)")
          ->type_name("FORMAT");
  args->bits_given = command->add_option("--bits", args->bits, "The same as --to intB")->type_name("B")->excludes(to);
  CLI::Option* symmetric = command->add_flag("--symmetric", args->symmetric, "A range around zero (default)");
  command->add_flag("--asymmetric", args->asymmetric, "A range of its own for each sign, with a zero point")
      ->excludes(symmetric);
  args->axis_given =
      command->add_option("--channels", args->axis, "A range for each index of this axis; -1 is the last one")
          ->type_name("AXIS");
  command->add_option("--out", args->out, "Write the results to this file, as JSON")
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option("--plot", args->plot, "Draw the histogram and the range to this file: .svg or .png; .json: the data")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_flag("--markdown", args->markdown, "Print the table as Markdown");
  command->callback([&context, args] { context.action = [&context, args] { return run_calibrate(context, *args); }; });
}

}  // namespace tilewright::cli
