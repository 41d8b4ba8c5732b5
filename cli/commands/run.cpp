// SPDX-License-Identifier: Apache-2.0
// run: compute a problem once, on the GPU, else by this CPU's kernels, else by the plain reference, and check the
// result on the host.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "cli/advice.h"
#include "cli/command.h"
#include "cli/launching.h"
#include "cli/model.h"

namespace tilewright::cli {
namespace {

struct RunArgs {
  ProblemArgument problem;
  std::string model, tensor;
  bool tune = false, cpu = false;
  std::string device;
  std::uint64_t seed = 1;
};

struct Result {
  std::string device, arch, kernel, input = "random";
  bool on_device = false, cpu = false;
  int threads = 0;  // of a CPU
  Stats stats;
  double microseconds = 0;
  HostCheck check;
};

void run_on_device(Engine& engine, const RunArgs& args, const Problem& problem, const Task& task, const Device& device,
                   HostBuffers& host, Result& result) {
  if (args.tune) {
    const Progress progress;
    TunePolicy policy;
    policy.progress = progress;
    engine.tune(problem, device, policy);
  }
  const Kernel kernel = engine.prepare(problem, device);
  const Choice choice = engine.choose(problem, device);
  result.on_device = true;
  result.cpu = device.arch().cpu != nullptr;
  if (result.cpu) result.threads = device.sms();
  result.device = device.name();
  result.arch = device.arch().name;
  // What was chosen is passed over where it cannot be compiled: without libLLVM.
  const Candidate& used = kernel.candidate(problem.rows());
  result.kernel = used == choice.candidate
                      ? fmt::format("{} ({}{})", used.text(), to_string(choice.grade),
                                    choice.microseconds > 0 ? ", measured " + microseconds(choice.microseconds) : "")
                      : used.text();
  const DeviceBuffers buffers(device, host);
  const std::vector<std::byte> arguments = task.arguments(buffers.pointers, problem.rows());
  const OwnedStream stream(device);
  const auto launch = [&] { kernel.launch(stream.get(), arguments, problem.rows(), problem.cols()); };
  launch();
  stream.synchronize();
  for (std::size_t i = 0; i < buffers.memory.size(); ++i)
    if (task.buffers[i].output) buffers.memory[i].download(host.bytes[i]);
  result.microseconds = time_launches(device, launch);
  result.stats = engine.stats();
}

void show(const Context& context, const Problem& problem, const Result& r) {
  const HostCheck& check = r.check;
  if (context.json) {
    print_json(Json{{"problem", problem.text()},
                    {"executed_on", r.cpu         ? "cpu"
                                    : r.on_device ? "gpu"
                                                  : "cpu reference"},
                    {"device", r.on_device ? Json(r.device) : Json()},
                    {"arch", r.on_device ? Json(r.arch) : Json()},
                    {"kernel", r.on_device ? Json(r.kernel) : Json()},
                    {"input", r.input},
                    {"compiled", r.stats.compiled},
                    {"cache_hits", r.stats.cache_hits},
                    {"measured", r.stats.measured},
                    {"built_in", r.stats.built_in},
                    {"microseconds", r.microseconds},
                    {"bytes", problem.min_bytes()},
                    {"ops", problem.ops()},
                    {"checked", check.checked},
                    {"outputs", check.outputs},
                    {"largest_error", check.largest_error},
                    {"error_of_bound", check.of_bound ? Json(*check.of_bound) : Json()},
                    {"infinite", check.infinite},
                    {"verified", check.wrong.empty()},
                    {"wrong", check.wrong}});
    return;
  }
  print(fmt::format("problem  {}\ninput    {}\ndevice   {}{}", problem.text(), r.input, r.device,
                    r.cpu         ? fmt::format(" ({}, {} threads)", r.arch, r.threads)
                    : r.on_device ? " (" + r.arch + ")"
                                  : ""));
  if (r.on_device)
    print(fmt::format("kernel   {}\ncompiles {} compiled, {} from the cache, {} measured{}", r.kernel, r.stats.compiled,
                      r.stats.cache_hits, r.stats.measured,
                      r.stats.built_in ? fmt::format(", {} built in: there is no libLLVM", r.stats.built_in) : ""));
  print(fmt::format("time     {}{}", microseconds(r.microseconds),
                    r.on_device ? " per launch, back to back, operands warm" : " on the CPU"));
  if (check.of_bound)
    print(fmt::format("error    {:.3g} at most, {:.3g} of the bound; {} of {} outputs checked against fp64",
                      check.largest_error, *check.of_bound, check.checked, check.outputs));
  else
    print(fmt::format("error    {:.3g} at most from rounding to the format; every byte checked", check.largest_error));
  if (check.infinite)
    print(fmt::format("note     {} of {} checked outputs are not finite, as the exact results in y's format",
                      check.infinite, check.checked));
  print(check.wrong.empty() ? "result   verified" : "result   WRONG: " + check.wrong);
}

// The device; without one, why the plain reference computes.
std::optional<Device> device_for(const RunArgs& args, const Options& options, const Problem& problem,
                                 std::string& why) {
  if (args.cpu) {
    why = "the plain CPU reference was asked for";
    return {};
  }
  if (args.device.empty() && Device::count(options.driver) == 0)
    if (const std::string lacks = without_kernels(as_computed(problem, host_arch()), host_arch()); !lacks.empty()) {
      why = fmt::format("no GPU was found, and {}", lacks);
      return {};
    }
  return device_or_cpu(args.device, options, "run --device");
}

int run_run(const Context& context, const RunArgs& args) {
  Problem problem = args.problem.parse();
  if (args.model.empty() != args.tensor.empty())
    throw Error(ErrorCode::invalid_argument, args.model.empty() ? "--model" : "--tensor", "",
                "must be given with the other");
  if (problem.min_bytes() > kMostBytes)
    throw Error(ErrorCode::too_large, "problem", problem.text(),
                fmt::format("is too large: run checks at most {:g} bytes in all operands", kMostBytes));
  const Options options = context.options();
  Result result;
  const std::optional<Device> device = device_for(args, options, problem, result.device);
  if (args.tune && !device) throw Error(ErrorCode::library_missing, "--tune", "", "needs a device: " + result.device);
  if (device)
    problem = as_computed(problem, device->arch());
  else
    result.device = "none: " + result.device + (args.cpu ? "" : ", so this is the plain CPU reference");

  Task task;
  problem.operation().describe(problem, task);
  HostBuffers host(task, args.seed);
  if (!args.model.empty()) {
    if (task.weights < 0)
      throw Error(ErrorCode::unsupported, "--model", args.model,
                  fmt::format("must be left out: {} has no matrix that a tensor may stand in for", problem.op()));
    result.input =
        load_tensor(args.model, args.tensor, task.matrices[static_cast<std::size_t>(task.weights)], host.spans) +
        " of " + args.model;
  }
  if (device) {
    tell_of_cpu(args.device, *device);
    Engine engine(options);
    run_on_device(engine, args, problem, task, *device, host, result);
  } else {
    const auto start = Clock::now();
    problem.operation().run_on_host(problem, task, host.spans);
    result.microseconds = microseconds_since(start);
  }
  result.check = problem.operation().check_on_host(problem, task, host.spans);
  show(context, problem, result);
  return result.check.wrong.empty() ? kOk : kWrong;
}

}  // namespace

void add_run(Context& context) {
  const auto args = std::make_shared<RunArgs>();
  CLI::App* command = add_command(context, *context.app, "run",
                                  "Compute once and check the result; without a GPU, on this machine's CPU");
  add_problem(command, args->problem, true);
  command->add_option("--model", args->model, "A GGUF file with the weights (default: random)")->type_name("FILE");
  command->add_option("--tensor", args->tensor, "The tensor's name in --model")->type_name("NAME");
  command->add_option("--seed", args->seed, "Seed of the random values")->check(at_least(0));
  add_device(command, args->device);
  command->add_flag("--cpu", args->cpu, "The plain reference on the CPU, which is slow, instead of kernels");
  command->add_flag("--tune", args->tune, "Measure first; remember the choice");
  command->callback([&context, args] { context.action = [&context, args] { return run_run(context, *args); }; });
}

}  // namespace tilewright::cli
