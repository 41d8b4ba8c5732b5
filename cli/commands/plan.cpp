// SPDX-License-Identifier: Apache-2.0
// plan, emit: what would compute a problem, and its source text. Neither needs a GPU or a compiler.
#include <fmt/format.h>
#include <tilewright/arch.h>

#include <filesystem>
#include <fstream>

#include "cli/advice.h"
#include "cli/command.h"

namespace tilewright::cli {
namespace {

struct PlanArgs {
  ProblemArgument problem;
  std::string arch, candidate, directory;
  int top = 10;
  bool packed = false;
};

Json knobs_json(const Candidate& c) {
  Json knobs = Json::object();
  for (const auto& [name, value] : c.knobs) knobs[name] = value;
  return knobs;
}

Problem problem_for(const Engine& engine, const PlanArgs& args, const Arch& target) {
  const Problem problem = args.problem.parse();
  // A CPU that nobody named computes as `run` does there.
  return args.packed || (args.arch.empty() && target.cpu) ? engine.packed(problem, target) : problem;
}

int run_plan(const Context& context, const PlanArgs& args) {
  Options options = context.options();
  options.cache_read_only = true;
  const Arch& target = arch_or_device(args.arch, options);
  const Engine engine(std::move(options));
  const Problem problem = problem_for(engine, args, target);
  const auto plans = engine.plan(problem, target);
  Json list = Json::array();
  Table table({"#", "candidate", "predicted", "blocks", "threads", "shared"});
  for (std::size_t i = 0; i < plans.size() && (args.top == 0 || i < static_cast<std::size_t>(args.top)); ++i) {
    const Planned& p = plans[i];
    const auto blocks = [&](const GridAxis& axis) { return axis.blocks(problem.rows(), problem.cols()); };
    // A persistent grid depends on the device; without one it is that of the target's typical device.
    const std::uint64_t x =
        p.plan.cpu ? blocks(p.plan.cpu->blocks) : p.plan.resident(blocks(p.plan.x), target.typical_sms);
    list.push_back({{"candidate", p.candidate.text()},
                    {"family", p.candidate.family},
                    {"knobs", knobs_json(p.candidate)},
                    {"predicted_microseconds", p.predicted_microseconds},
                    {"grid", {x, blocks(p.plan.y), blocks(p.plan.z)}},
                    {"threads", p.plan.threads},
                    {"cluster", p.plan.cluster},
                    {"persistent", p.plan.persistent},
                    {"shared_bytes", p.plan.shared_bytes}});
    table.add({std::to_string(i + 1), p.candidate.text(), microseconds(p.predicted_microseconds),
               fmt::format("{}x{}x{}", x, blocks(p.plan.y), blocks(p.plan.z)), std::to_string(p.plan.threads),
               bytes_text(p.plan.shared_bytes)});
  }
  const std::string warning = only_reference(problem, target);
  const auto advice = advise(engine, problem, target, plans.front().predicted_microseconds);
  if (context.json) {
    print_json(Json{{"problem", problem.text()},
                    {"arch", target.name},
                    {"legal", plans.size()},
                    {"candidates", list},
                    {"warning", warning.empty() ? Json() : Json(warning)},
                    {"advice", advice ? json(*advice) : Json()}});
  } else {
    print(table.text());
    print(fmt::format("{} legal candidates for {} on {}", plans.size(), problem.text(), target.name));
    if (advice) print("\n" + text(*advice));
  }
  if (!warning.empty()) tell("warning: " + warning);
  return kOk;
}

Source source_for(const Problem& problem, const Arch& target, const PlanArgs& args, const Engine& engine) {
  if (args.candidate.empty()) return engine.emit(problem, target);
  const Candidate candidate = Candidate::parse(args.candidate);
  const Family& f = family(problem.op(), candidate.family);
  std::string why = f.why_not(problem, target);
  if (why.empty()) why = f.illegal(problem, target, candidate);
  if (!why.empty()) throw Error(ErrorCode::invalid_argument, "--candidate", args.candidate, "is not legal: " + why);
  return f.source(problem, target, candidate);
}

// What compiles a CPU's text to the object that the library would load: code generation without passes.
std::string compile_command(const CpuTarget& target, const std::string& file, const std::string& object) {
  return fmt::format("llc -O2 -relocation-model=pic -filetype=obj -mtriple={}{}{} {} -o {}", target.triple,
                     *target.features ? " -mattr=" : "", target.features, file, object);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  if (failed)
    throw Error(ErrorCode::io, "--dir", path.parent_path().string(), "cannot be created: " + failed.message());
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw Error(ErrorCode::io, "--dir", path.string(), "cannot be written");
}

int run_emit(const Context& context, const PlanArgs& args) {
  Options options = context.options();
  options.cache_read_only = true;
  const Arch& target = arch_or_device(args.arch, options);
  const Engine engine(std::move(options));
  const Problem problem = problem_for(engine, args, target);
  const Source source = source_for(problem, target, args, engine);
  if (source.text.empty())
    throw Error(ErrorCode::unsupported, "problem", problem.text() + " on " + target.name,
                "has no source to compile: " + source.name + " computes it, which is built into the library");
  const std::filesystem::path directory = args.directory;
  const std::string file = target.cpu ? "kernel.ll" : "kernel.cu";
  if (!args.directory.empty()) {
    write_file(directory / file, source.text);
    for (const Header& h : source.headers) write_file(directory / h.name, h.text);
  }
  if (context.json) {
    Json headers = Json::array();
    for (const Header& h : source.headers) headers.push_back({{"name", h.name}, {"text", std::string(h.text.view())}});
    print_json(Json{{"name", source.name},
                    {"entry", source.entry},
                    {"options", source.options},
                    {"triple", target.cpu ? Json(target.cpu->triple) : Json()},
                    {"features", target.cpu ? Json(target.cpu->features) : Json()},
                    {"threads", source.plan.threads},
                    {"shared_bytes", source.plan.shared_bytes},
                    {"text", source.text},
                    {"headers", headers}});
  } else if (args.directory.empty()) {
    print(source.text);
  } else if (target.cpu) {
    print(fmt::format("{} written to {}; LLVM 15 or newer compiles it:\n{}", file, args.directory,
                      compile_command(*target.cpu, directory / file, directory / "kernel.o")));
  } else {
    print(fmt::format("{} and {} headers written to {}", file, source.headers.size(), args.directory));
  }
  return kOk;
}

}  // namespace

void add_plan(Context& context) {
  constexpr const char* kPacked = "Weights in the order that the target's kernels want";
  const auto args = std::make_shared<PlanArgs>();
  CLI::App* plan = add_command(context, *context.app, "plan", "Rank the legal candidates of a problem");
  add_problem(plan, args->problem, true);
  add_target(plan, args->arch);
  plan->add_flag("--packed", args->packed, kPacked);
  plan->add_option("--top", args->top, "Print at most this many; 0: all")->check(at_least(0));
  plan->callback([&context, args] { context.action = [&context, args] { return run_plan(context, *args); }; });

  CLI::App* emit = add_command(context, *context.app, "emit", "Print the source of the chosen kernel");
  add_problem(emit, args->problem, true);
  add_target(emit, args->arch);
  emit->add_flag("--packed", args->packed, kPacked);
  emit->add_option("--candidate", args->candidate, "This one instead of the chosen, as plan prints it");
  emit->add_option("--dir", args->directory,
                   "Write the source here: kernel.cu and every header it includes; for a CPU kernel.ll");
  emit->callback([&context, args] { context.action = [&context, args] { return run_emit(context, *args); }; });
}

}  // namespace tilewright::cli
