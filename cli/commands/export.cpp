// SPDX-License-Identifier: Apache-2.0
// export: compiled kernels as files, for programs that load and launch them without this library. Needs no GPU.
#include <fmt/format.h>
#include <tilewright/arch.h>
#include <tilewright/operation.h>
#include <tilewright/version.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

struct ExportArgs {
  ProblemArgument problem;
  std::vector<std::string> workloads, archs;
  std::string directory;
  bool packed = false;
};

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  if (failed)
    throw Error(ErrorCode::io, "--dir", path.parent_path().string(), "cannot be created: " + failed.message());
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  if (!file.flush()) throw Error(ErrorCode::io, "--dir", path.string(), "cannot be written");
}

Json axis_json(const GridAxis& a) { return {{"fixed", a.fixed}, {"per_rows", a.per_rows}, {"per_cols", a.per_cols}}; }

// Offsets that a map does not use are null.
Json offset_json(std::uint32_t offset) { return offset == TensorMapPlan::kNone ? Json() : Json(offset); }

Json map_json(const TensorMapPlan& m) {
  return {{"pointer", m.pointer},
          {"behind", m.behind},
          {"rows_at", offset_json(m.rows_at)},
          {"rows", m.rows},
          {"stride_at", offset_json(m.stride_at)},
          {"inner_at", offset_json(m.inner_at)},
          {"inner", m.inner},
          {"block", m.block},
          {"block_elements", m.block_elements},
          {"element_bytes", m.element_bytes},
          {"box_inner", m.box_inner},
          {"box_rows", m.box_rows},
          {"box_panels", m.box_panels},
          {"tile_boxes", m.tile_boxes},
          {"swizzle", m.swizzle},
          {"axes", m.axes},
          {"axes_at", m.axes_at},
          {"box_axes", m.box_axes},
          {"steps", m.steps}};
}

Json plan_json(const LaunchPlan& p) {
  Json maps = Json::array();
  for (std::uint32_t i = 0; i < p.map_count; ++i) maps.push_back(map_json(p.maps[i]));
  return {{"grid", {axis_json(p.x), axis_json(p.y), axis_json(p.z)}},
          {"threads", p.threads},
          {"cluster", p.cluster},
          {"shared_bytes", p.shared_bytes},
          {"persistent", p.persistent},
          {"overlap", p.overlap},
          {"most_rows", p.most_rows},
          {"maps", maps}};
}

Json contract_json(const Contract& c) {
  Json pointers = Json::array(), strides = Json::array(), factors = Json::array(), integers = Json::array();
  for (const PointerRule& r : c.pointers)
    pointers.push_back({{"name", r.name}, {"offset", r.offset}, {"align", r.align}, {"required", r.required}});
  for (const StrideRule& r : c.strides)
    strides.push_back({{"name", r.name}, {"offset", r.offset}, {"least", r.least}, {"multiple", r.multiple}});
  for (const FactorRule& r : c.factors) factors.push_back({{"name", r.name}, {"offset", r.offset}});
  for (const IntegerRule& r : c.integers) integers.push_back({{"name", r.name}, {"offset", r.offset}});
  std::string constants;
  for (const std::byte b : c.constants) constants += fmt::format("{:02x}", static_cast<unsigned>(b));
  const bool fixed = c.rows_at == Contract::kFixedRows;
  return {{"bytes", c.args_bytes},  {"pointers", pointers},  {"strides", strides},
          {"factors", factors},     {"integers", integers},  {"rows_at", fixed ? Json() : Json(c.rows_at)},
          {"rows_per", c.rows_per}, {"constants", constants}};
}

class Exporter {
 public:
  Exporter(const Engine& engine, const Arch& target, std::filesystem::path folder)
      : engine_(engine), target_(target), folder_(std::move(folder)) {}

  void add(const Problem& problem) {
    Json rows = Json::array(), kernels = Json::array();
    std::map<std::string, std::size_t> known;  // by file
    const auto kernel_for = [&](const Problem& p) {
      const Source source = engine_.emit(p, target_);
      if (source.text.empty())
        throw Error(ErrorCode::unsupported, "problem", p.text() + " on " + target_.name,
                    "has no kernel to compile: " + source.name + " is built into the library");
      const Binary binary = compile(source, target_, CompileOptions::of(engine_.options()));
      const std::string_view image(reinterpret_cast<const char*>(binary.image.data()), binary.image.size());
      const std::string file = binary.entry + "-" + sha256_hex(image).substr(0, 12) + ".cubin";
      const auto [at, added] = known.try_emplace(file, known.size());
      if (!added) return at->second;
      write_file(folder_ / file, image);
      Json kernel = {{"file", file}, {"entry", binary.entry}, {"kernel", source.name}};
      kernel.update(plan_json(binary.plan));
      kernels.push_back(std::move(kernel));
      return at->second;
    };
    if (problem.fixed_rows()) {
      rows.push_back({{"up_to", Json()}, {"kernel", kernel_for(problem)}});
    } else {
      for (const std::int64_t bucket : kBuckets) {
        const bool last = bucket == kBuckets[kBucketCount - 1];
        rows.push_back({{"up_to", last ? Json() : Json(bucket)}, {"kernel", kernel_for(problem.with_rows(bucket))}});
      }
    }
    files_ += known.size();
    problems_.push_back({{"problem", problem.text()},
                         {"cols", problem.cols()},
                         {"arguments", contract_json(problem.operation().contract(problem))},
                         {"rows", rows},
                         {"kernels", kernels}});
  }
  Json finish() {
    Json all = {{"library", TILEWRIGHT_VERSION_STRING}, {"target", target_.name}, {"problems", problems_}};
    write_file(folder_ / "kernels.json", all.dump(1) + "\n");
    return all;
  }
  std::size_t files() const { return files_; }

 private:
  const Engine& engine_;
  const Arch& target_;
  const std::filesystem::path folder_;
  Json problems_ = Json::array();
  std::size_t files_ = 0;
};

int run_export(const Context& context, const ExportArgs& args) {
  Options options = context.options();
  options.cache_read_only = true;
  const std::vector<const Arch*> archs = targets(args.archs, options);
  const std::vector<Problem> problems = all_problems(args.problem, args.workloads);
  const Engine engine(std::move(options));
  Json all = Json::array();
  for (const Arch* target : archs) {
    if (target->cpu)
      throw Error(ErrorCode::unsupported, "--arch", target->name, "is not supported: only GPUs' kernels are files");
    const std::filesystem::path folder = std::filesystem::path(args.directory) / target->name;
    Exporter exporter(engine, *target, folder);
    for (const Problem& p : problems) exporter.add(args.packed ? engine.packed(p, *target) : p);
    all.push_back(exporter.finish());
    if (!context.json)
      print(fmt::format("{}: {} kernels of {} problems and kernels.json written to {}", target->name, exporter.files(),
                        problems.size(), folder.string()));
  }
  if (context.json) print_json(all);
  return kOk;
}

}  // namespace

void add_export(Context& context) {
  const auto args = std::make_shared<ExportArgs>();
  CLI::App* command =
      add_command(context, *context.app, "export", "Write compiled kernels as files, for programs that load them");
  add_problem(command, args->problem, false);
  add_workload(command, args->workloads);
  command->add_option("--arch", args->archs, "GPUs, separated by commas (default: this machine's)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("TARGET");
  command->add_flag("--packed", args->packed, "Problems take packed weights where that is faster");
  command->add_option("--dir", args->directory, "A folder for each target is written here")->required();
  command->callback([&context, args] { context.action = [&context, args] { return run_export(context, *args); }; });
}

}  // namespace tilewright::cli
