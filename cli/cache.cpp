// SPDX-License-Identifier: Apache-2.0
// cache ls|show|verify|gc|export|import|merge|explain: the cache file by hand.
#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

struct CacheArgs {
  std::string kind, id, file, arch;
  int limit = 0;
  std::int64_t max_bytes = -1;
  bool repair = false, no_binaries = false, force = false;
  ProblemArgument problem;
};

// Opens the store of --cache. `must_exist`: for commands that only look, because a store without its file would answer
// from memory.
Store open(const Context& context, bool must_exist, bool read_only, StoreOptions* out = nullptr) {
  const Options options = context.options();
  need_cache(options);
  if (must_exist && !std::filesystem::exists(options.cache))
    throw Error(ErrorCode::io, "--cache", options.cache, "no such file");
  StoreOptions store;
  store.path = options.cache;
  store.shipped = options.shipped;
  store.cap = options.cache_cap;
  store.allow_shared = options.allow_shared;
  store.read_only = read_only;
  store.log = options.log;
  if (out) *out = store;
  return Store(std::move(store));
}

void need_file(const Store& store) {
  if (store.degraded())
    throw Error(ErrorCode::io, "--cache", store.path(), "cannot be used as a cache; try cache verify");
}

// The first of a binary's problems: many sizes share one.
std::string problems_text(const std::vector<std::string>& problems) {
  if (problems.empty()) return "";
  const std::string more = problems.size() > 1 ? fmt::format(" and {} more", problems.size() - 1) : "";
  return fmt::format(" for {}{}", problems.front(), more);
}

int run_ls(const Context& context, const CacheArgs& args) {
  const Store store = open(context, true, true);
  need_file(store);
  std::map<std::string, std::vector<std::string>> served;
  if (args.kind.empty() || args.kind == "binary") {
    Options options = context.options();
    options.cache_read_only = true;
    options.log = nullptr;  // the store has said it
    served = Engine(std::move(options)).served();
  }
  Json list = Json::array();
  Table table({"kind", "id", "size", "what"});
  std::map<std::string, std::pair<int, std::int64_t>> totals;
  int shown = 0;
  for (const StoreEntry& e : store.list()) {
    if (!args.kind.empty() && e.kind != args.kind) continue;
    auto& total = totals[e.kind];
    ++total.first;
    total.second += e.bytes;
    if (args.limit && shown >= args.limit) continue;
    ++shown;
    const std::vector<std::string>& problems = served[e.kernel];
    list.push_back({{"kind", e.kind},
                    {"id", e.id},
                    {"summary", e.summary},
                    {"bytes", e.bytes},
                    {"sequence", e.sequence},
                    {"layer", e.layer}});
    if (e.kind == "binary") list.back()["problems"] = problems;
    table.add({e.kind, e.id, bytes_text(static_cast<double>(e.bytes)), e.summary + problems_text(problems)});
  }
  if (context.json) {
    Json sums = Json::object();
    for (const auto& [kind, t] : totals) sums[kind] = {{"rows", t.first}, {"bytes", t.second}};
    print_json(Json{{"path", store.path()}, {"totals", sums}, {"entries", list}});
    return kOk;
  }
  if (shown) print(table.text());
  std::string sums;
  for (const auto& [kind, t] : totals)
    sums += fmt::format("{}{} {} rows, {}", sums.empty() ? "" : "; ", kind, t.first,
                        bytes_text(static_cast<double>(t.second)));
  print(fmt::format("{}: {}", store.path(), sums.empty() ? "empty" : sums));
  return kOk;
}

int run_show(const Context& context, const CacheArgs& args) {
  const Store store = open(context, true, true);
  need_file(store);
  print(store.show(args.id));  // JSON already
  return kOk;
}

int run_verify(const Context& context, const CacheArgs& args) {
  StoreOptions again;
  VerifyReport report;
  std::vector<std::string> repaired;
  bool usable = true;
  {
    Store store = open(context, true, !args.repair, &again);
    report = store.verify(args.repair);
    usable = !store.degraded();
    if (!usable) report.damaged.push_back(store.path() + ": cannot be used as a cache");
  }
  if (args.repair && usable && !report.damaged.empty()) {
    repaired = std::exchange(report.damaged, {});
    report = Store(again).verify(false);
  }
  if (context.json) {
    print_json(
        Json{{"path", again.path}, {"checked", report.checked}, {"repaired", repaired}, {"damaged", report.damaged}});
  } else {
    for (const std::string& r : repaired) print("repaired: " + r);
    for (const std::string& d : report.damaged) print("damaged: " + d);
    print(fmt::format("{}: {} rows checked, {} repaired, {} damaged", again.path, report.checked, repaired.size(),
                      report.damaged.size()));
  }
  return report.damaged.empty() ? kOk : kDamage;
}

int run_gc(const Context& context, const CacheArgs& args) {
  Store store = open(context, true, false);
  need_file(store);
  const std::int64_t freed = store.gc(args.max_bytes < 0 ? context.options().cache_cap : args.max_bytes);
  if (context.json)
    print_json(Json{{"path", store.path()}, {"freed_bytes", freed}});
  else
    print(fmt::format("{}: {} freed", store.path(), bytes_text(static_cast<double>(freed))));
  return kOk;
}

int run_export(const Context& context, const CacheArgs& args) {
  Store store = open(context, true, true);
  need_file(store);
  store.export_to(args.file, !args.no_binaries, args.force);
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(args.file));
  if (context.json)
    print_json(Json{{"file", args.file}, {"bytes", bytes}});
  else
    print(fmt::format("{}: {}", args.file, bytes_text(static_cast<double>(bytes))));
  return kOk;
}

int run_merge(const Context& context, const CacheArgs& args, bool everything) {
  if (!std::filesystem::exists(args.file)) throw Error(ErrorCode::io, "file", args.file, "no such file");
  Store store = open(context, false, false);
  need_file(store);
  const MergeReport r = everything ? store.merge_from(args.file) : store.import_from(args.file);
  if (context.json)
    print_json(Json{{"added", r.added}, {"kept", r.kept}, {"replaced", r.replaced}, {"refused", r.refused}});
  else
    print(fmt::format("{} added, {} replaced, {} kept, {} refused", r.added, r.replaced, r.kept, r.refused));
  return kOk;
}

int run_explain(const Context& context, const CacheArgs& args) {
  Options options = context.options();
  options.cache_read_only = true;
  const Problem problem = args.problem.parse();
  const Arch& target = arch_or_device(args.arch, options);
  std::optional<Device> device;
  if (target.cpu) try {
      device = Device::open_cpu({.parallel_for = {}, .target = target.name});
    } catch (const Error&) {  // another CPU's
    }
  else if (Device::count(options.driver) > 0)
    device = Device::open(0, options.driver);
  if (device && std::string_view(device->arch().name) != target.name) device.reset();
  const Engine engine(std::move(options));
  const std::string text = engine.explain(problem, target, device ? &*device : nullptr);
  if (context.json)
    print_json(Json{{"problem", problem.text()}, {"arch", target.name}, {"explanation", text}});
  else
    print(text);
  return kOk;
}

}  // namespace

void add_cache(Context& context) {
  CLI::App* group = context.app->add_subcommand("cache", "Inspect and maintain the cache file");
  group->require_subcommand(1);
  const auto args = std::make_shared<CacheArgs>();
  const auto add = [&](const char* name, const char* help, auto run) {
    CLI::App* command = add_command(context, *group, name, help);
    command->callback(
        [&context, args, run] { context.action = [&context, args, run] { return run(context, *args); }; });
    return command;
  };
  CLI::App* ls = add("ls", "List its rows", run_ls);
  ls->add_option("--kind", args->kind, "Only these")
      ->check(CLI::IsMember({"binary", "choice", "measurement", "environment"}));
  ls->add_option("--limit", args->limit, "Print at most this many; 0: all")->check(at_least(0));
  add("show", "Print one row as JSON", run_show)
      ->add_option("id", args->id, "As ls prints it, or a prefix")
      ->required();
  add("verify", "Check every row; exit code 3 while damage remains", run_verify)
      ->add_flag("--repair", args->repair, "Delete damaged rows");
  add("gc", "Evict the rows used longest ago, then compact", run_gc)
      ->add_option("--max-bytes", args->max_bytes, "Size to shrink to, e.g. 200M (default: the cap)")
      ->transform(size_in_bytes());
  CLI::App* out = add("export", "Write a new file that can be shipped read-only", run_export);
  out->add_option("file", args->file, "The file to write")->required()->check(not_empty());
  out->add_flag("--force", args->force, "Replace a file that is there, atomically");
  out->add_flag("--no-binaries", args->no_binaries, "Choices and measurements only");
  add("import", "Take choices and measurements from a file, never binaries",
      [](const Context& c, const CacheArgs& a) { return run_merge(c, a, false); })
      ->add_option("file", args->file, "The file to read")
      ->required()
      ->check(not_empty());
  add("merge", "Take everything from a file that you trust; the faster choice wins",
      [](const Context& c, const CacheArgs& a) { return run_merge(c, a, true); })
      ->add_option("file", args->file, "The file to read")
      ->required()
      ->check(not_empty());
  CLI::App* explain = add("explain", "Say why a problem gets the kernel it gets", run_explain);
  add_problem(explain, args->problem, true);
  explain->add_option("--arch", args->arch, "Target, e.g. sm_90a or cpu (default: this machine's GPU)");
}

}  // namespace tilewright::cli
