// SPDX-License-Identifier: Apache-2.0
// run: compute a problem once, on the GPU or else by the CPU reference, and check the result.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "cli/command.h"
#include "cli/oracle.h"

namespace tilewright::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Args {
  ProblemArgument problem;
  std::string model, tensor;
  bool tune = false, cpu = false;
  int device = -1;
  std::uint64_t seed = 1;
};

constexpr double kMostElements = 4e9;  // decoded operands are kept as floats in host memory

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// A matrix's streams in device memory.
struct DeviceMatrix {
  std::vector<Memory> memory;
  MutableOperand operand;

  DeviceMatrix(const Device& device, HostMatrix& host, bool upload, bool inverse_global = false) {
    const auto specs = host.format.info().streams;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      std::vector<std::byte>& bytes = host.streams[i];
      memory.emplace_back(device, bytes.size());
      const bool global = specs[i].scope == Scope::tensor;
      if (global && inverse_global) {  // the problem divides by the factor that the encoder multiplies with
        float g = 0;
        std::memcpy(&g, bytes.data(), sizeof g);
        g = 1 / g;
        memory.back().upload(std::as_bytes(std::span(&g, 1)));
      } else if (global || upload) {
        memory.back().upload(bytes);
      } else {
        memory.back().fill(0xff);  // NaN: an output that nothing wrote cannot pass
      }
      const std::string_view name = specs[i].name;
      if (name == "data") operand.data = memory.back().data();
      if (name == "scales") operand.scales = memory.back().data();
      if (name == "global") operand.global = static_cast<float*>(memory.back().data());
    }
  }

  void download(HostMatrix& host) const {
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i].download(host.streams[i]);
    host.format.info().decode(host.operand(), host.rows, host.cols, host.values.data());
  }
};

struct Result {
  std::string device = "none: no GPU was found, so this is the plain CPU reference", arch, kernel, weights;
  bool on_gpu = false;
  Stats stats;
  double microseconds = 0;
  std::int64_t checked = 0, outputs = 0;
  double largest = 0, of_bound = 0;
  std::string wrong;
};

// Warm: launches back to back over the same operands.
template <class Launch>
double time_launches(const Device& device, const Launch& launch) {
  for (int i = 0; i < 3; ++i) launch();
  device.synchronize();
  for (int count = 8;; count *= 2) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) launch();
    device.synchronize();
    const double total = microseconds_since(start);
    if (total > 2e4 || count >= 1 << 14) return total / count;
  }
}

Kernel prepared(Engine& engine, const Args& args, const Problem& problem, const Device& device, Result& result) {
  if (args.tune) {
    const Progress progress;
    TunePolicy policy;
    policy.progress = progress;
    engine.tune(problem, device, policy);
  }
  Kernel kernel = engine.prepare(problem, device);
  const Choice choice = engine.choose(problem, device);
  result.on_gpu = true;
  result.device = device.name();
  result.arch = device.arch().name;
  result.kernel = fmt::format("{} ({}{})", choice.candidate.text(), to_string(choice.grade),
                              choice.microseconds > 0 ? ", measured " + microseconds(choice.microseconds) : "");
  return kernel;
}

void run_gemm(const Context& context, const Args& args, const Problem& problem, const std::optional<Device>& device,
              Result& result) {
  const Gemm& g = *problem.gemm();
  // Of integers without a scale, as many codes as there are.
  const auto deviation = [](Format f, float wanted) {
    return f.name() == "int8" || f.name() == "int32" ? 40.0f : f.name() == "e4m3" ? std::max(wanted, 0.125f) : wanted;
  };
  HostMatrix x = encoded(g.x_stored(), g.m, g.k, random_values(g.m * g.k, deviation(g.x, 1), args.seed));
  const HostMatrix x_read = g.x_from ? encoded(g.x, g.m, g.k, x.values) : x;  // what is multiplied
  HostMatrix w =
      args.model.empty()
          ? encoded(g.w, g.n, g.k,
                    random_values(g.n * g.k, deviation(g.w, 1 / std::sqrt(static_cast<float>(g.k))), args.seed + 1))
          : from_model(Gguf::open(args.model), args.tensor, g.w, g.n, g.k);
  std::optional<HostMatrix> bias;
  if (g.bias) bias = encoded(*g.bias, 1, g.n, random_values(g.n, deviation(*g.bias, 1), args.seed + 2));
  std::optional<HostMatrix> c;
  if (g.c) c = encoded(*g.c, g.m, g.n, random_values(g.m * g.n, 1, args.seed + 3));
  result.weights = args.model.empty() ? "random" : w.origin + " of " + args.model;
  const Sample sample = choose_sample(g.m, g.n, g.k);
  std::vector<float> got;
  if (device) {
    Engine engine(context.options());
    const Kernel kernel = prepared(engine, args, problem, *device, result);
    HostMatrix y = encoded(g.y, g.m, g.n, std::vector<float>(static_cast<std::size_t>(g.m * g.n)));
    const DeviceMatrix dx(*device, x, true, g.global == Global::div), dw(*device, w, true, g.global == Global::div);
    const DeviceMatrix dy(*device, y, false);
    std::optional<DeviceMatrix> db;
    if (bias) db.emplace(*device, *bias, true);
    std::optional<DeviceMatrix> dc;
    if (c) dc.emplace(*device, *c, true);
    GemmArgs launch{dx.operand, dw.operand, dy.operand.data, db ? db->operand.data : nullptr, g.m, 0, 0};
    if (dc) launch.c = dc->operand.data;
    std::optional<Memory> workspace;
    if (g.workspace) {
      workspace.emplace(*device, static_cast<std::size_t>(g.workspace));
      workspace->fill(0);
      launch.workspace = workspace->data();
    }
    const OwnedStream stream(*device);
    kernel.launch(stream.get(), launch);
    stream.synchronize();
    dy.download(y);
    for (std::int64_t r : sample.rows)
      for (std::int64_t c : sample.cols) got.push_back(y.values[static_cast<std::size_t>(r * g.n + c)]);
    result.microseconds = time_launches(*device, [&] { kernel.launch(stream.get(), launch); });
    result.stats = engine.stats();
  } else {
    const auto start = Clock::now();
    got = gemm_on_cpu(g, x_read, w, bias ? &*bias : nullptr, c ? &*c : nullptr, sample);
    result.microseconds = microseconds_since(start);
  }
  const Verdict verdict =
      judge(gemm_oracle(g, x_read, w, bias ? &*bias : nullptr, c ? &*c : nullptr, sample), got, sample);
  result.checked = sample.size();
  result.outputs = g.m * g.n;
  result.largest = verdict.largest;
  result.of_bound = verdict.of_bound;
  result.wrong = verdict.wrong;
}

// A cast is exact: the GPU must give the reference encoder's bytes.
void run_cast(const Context& context, const Args& args, const Problem& problem, const std::optional<Device>& device,
              Result& result) {
  const Cast& c = *problem.cast();
  HostMatrix x = args.model.empty() ? encoded(c.x, c.rows, c.cols, random_values(c.rows * c.cols, 1, args.seed))
                                    : from_model(Gguf::open(args.model), args.tensor, c.x, c.rows, c.cols);
  result.weights = args.model.empty() ? "random" : x.origin + " of " + args.model;
  const auto start = Clock::now();
  HostMatrix y = encoded(c.y, c.rows, c.cols, x.values, c.encoder);
  result.microseconds = microseconds_since(start);
  result.checked = result.outputs = c.rows * c.cols;
  for (std::size_t i = 0; i < y.values.size(); ++i)
    result.largest = std::max(result.largest, std::fabs(static_cast<double>(y.values[i]) - x.values[i]));
  if (!device) return;
  Engine engine(context.options());
  const Kernel kernel = prepared(engine, args, problem, *device, result);
  const DeviceMatrix dx(*device, x, true), dy(*device, y, false);
  const CastArgs launch{dx.operand, dy.operand, c.rows};
  const OwnedStream stream(*device);
  kernel.launch(stream.get(), launch);
  stream.synchronize();
  HostMatrix got = y;
  dy.download(got);
  for (std::size_t i = 0; i < y.streams.size() && result.wrong.empty(); ++i)
    for (std::size_t b = 0; b < y.streams[i].size(); ++b)
      if (y.streams[i][b] != got.streams[i][b]) {
        result.wrong = fmt::format("{} byte {} = {:#04x}, expected {:#04x}", c.y.info().streams[i].name, b,
                                   std::to_integer<int>(got.streams[i][b]), std::to_integer<int>(y.streams[i][b]));
        break;
      }
  result.microseconds = time_launches(*device, [&] { kernel.launch(stream.get(), launch); });
  result.stats = engine.stats();
}

void show(const Context& context, const Problem& problem, const Result& r) {
  if (context.json) {
    print_json(Json{{"problem", problem.text()},
                    {"executed_on", r.on_gpu ? "gpu" : "cpu reference"},
                    {"device", r.on_gpu ? Json(r.device) : Json()},
                    {"arch", r.on_gpu ? Json(r.arch) : Json()},
                    {"kernel", r.on_gpu ? Json(r.kernel) : Json()},
                    {"input", r.weights},
                    {"compiled", r.stats.compiled},
                    {"cache_hits", r.stats.cache_hits},
                    {"measured", r.stats.measured},
                    {"microseconds", r.microseconds},
                    {"checked", r.checked},
                    {"outputs", r.outputs},
                    {"largest_error", r.largest},
                    {"error_of_bound", problem.gemm() ? Json(r.of_bound) : Json()},
                    {"verified", r.wrong.empty()},
                    {"wrong", r.wrong}});
    return;
  }
  print(fmt::format("problem  {}\ninput    {}\ndevice   {}{}", problem.text(), r.weights, r.device,
                    r.on_gpu ? " (" + r.arch + ")" : ""));
  if (r.on_gpu)
    print(fmt::format("kernel   {}\ncompiles {} compiled, {} from the cache, {} measured", r.kernel, r.stats.compiled,
                      r.stats.cache_hits, r.stats.measured));
  print(fmt::format("time     {}{}", microseconds(r.microseconds),
                    r.on_gpu ? " per launch, back to back, operands warm" : " on the CPU"));
  if (problem.gemm())
    print(fmt::format("error    {:.3g} at most, {:.3g} of the bound; {} of {} outputs checked against fp64", r.largest,
                      r.of_bound, r.checked, r.outputs));
  else
    print(fmt::format("error    {:.3g} at most from rounding to the format", r.largest));
  print(r.wrong.empty() ? "result   verified" : "result   WRONG: " + r.wrong);
}

int run_run(const Context& context, const Args& args) {
  const Problem problem = args.problem.parse();
  if (args.model.empty() != args.tensor.empty())
    throw Error(ErrorCode::invalid_argument, args.model.empty() ? "--model" : "--tensor", "", "needed with the other");
  const Gemm* g = problem.gemm();
  if (problem.pack() || (g && g->packing != Packing::none))
    throw Error(ErrorCode::unsupported, "problem", problem.text(),
                "run takes gemms and casts over formats as they are stored");
  const double elements = g ? double(g->m) * double(g->k) + double(g->n) * double(g->k) + double(g->m) * double(g->n)
                            : double(problem.rows()) * double(problem.cols());
  if (elements > kMostElements)
    throw Error(ErrorCode::too_large, "problem", problem.text(),
                fmt::format("run checks at most {:g} elements in all operands", kMostElements));
  const Options options = context.options();
  std::optional<Device> device;
  if (args.device >= 0)
    device = need_device(args.device, options, "run --device");
  else if (!args.cpu && Device::count(options.driver) > 0)
    device = Device::open(0, options.driver);
  if (args.tune && !device) throw Error(ErrorCode::library_missing, "--tune", "", "needs a GPU; none was found");
  Result result;
  if (args.cpu) result.device = "none: the plain CPU reference was asked for";
  (g ? run_gemm : run_cast)(context, args, problem, device, result);
  show(context, problem, result);
  return result.wrong.empty() ? kOk : kWrong;
}

}  // namespace

void add_run(Context& context) {
  const auto args = std::make_shared<Args>();
  CLI::App* command = add_command(context, *context.app, "run",
                                  "Compute once and check the result; without a GPU, by the CPU reference");
  add_problem(command, args->problem, true);
  command->add_option("--model", args->model, "A GGUF file with the weights (default: random)")->type_name("FILE");
  command->add_option("--tensor", args->tensor, "The tensor's name in --model")->type_name("NAME");
  command->add_option("--seed", args->seed, "Of the random values");
  command->add_option("--device", args->device, "Ordinal of the GPU; an error if there is none")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--cpu", args->cpu, "The CPU reference, even with a GPU");
  command->add_flag("--tune", args->tune, "Measure first; remember the choice");
  command->callback([&context, args] { context.action = [&context, args] { return run_run(context, *args); }; });
}

}  // namespace tilewright::cli
