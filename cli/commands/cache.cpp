// SPDX-License-Identifier: Apache-2.0
// cache ls|show|verify|gc|export|import|merge|explain: the cache file by hand.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

struct CacheArgs {
  std::string kind, id, file, arch, device, part;
  std::vector<std::string> files;
  int limit = 0;
  std::int64_t max_bytes = -1;
  bool repair = false, stale = false, no_binaries = false, force = false;
  ProblemArgument problem;
};

// Opens the store of --cache. `must_exist`: for commands that only look, because a store without its file would answer
// from memory.
Store open(const Context& context, bool must_exist, bool read_only, StoreOptions* out = nullptr) {
  const Options options = context.options();
  need_cache(options);
  if (must_exist && !std::filesystem::exists(options.cache))
    throw Error(ErrorCode::io, "--cache", options.cache, "does not exist");
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

using Served = std::map<std::string, std::vector<std::string>>;  // problems by StoreEntry::kernel

// Every choice that is looked at takes most of a millisecond. Binaries that were used last belong to choices that were.
Served served_by(const Context& context, const StoreFilter& filter) {
  constexpr std::int64_t kChoicesPerRow = 20;
  Options options = context.options();
  options.cache_read_only = true;
  options.log = nullptr;  // the store has said it
  return Engine(std::move(options))
      .served({.target = filter.target, .problem = filter.problem, .limit = filter.limit * kChoicesPerRow});
}

// A binary does not say which problems it serves, so the filter's problem is looked for in what it serves.
std::vector<StoreEntry> list_binaries(const Store& store, const StoreFilter& filter, const Served& served) {
  std::vector<StoreEntry> found = store.list({.kind = "binary", .target = filter.target});
  std::erase_if(found, [&](const StoreEntry& e) { return !served.contains(e.kernel); });
  return found;
}

int run_ls(const Context& context, const CacheArgs& args) {
  const Store store = open(context, true, true);
  need_file(store);
  const StoreFilter filter{.kind = args.kind,
                           .target = args.arch.empty() ? "" : arch_or_device(args.arch, context.options()).name,
                           .problem = args.part,
                           .limit = args.limit};
  std::vector<StoreEntry> entries = store.list(filter);
  std::map<std::string, StoreTotal> totals = store.totals(filter);
  Served served;
  const bool binaries = args.kind.empty() || args.kind == "binary";
  if (binaries && !filter.problem.empty()) {
    served = served_by(context, {.target = filter.target, .problem = filter.problem});
    for (StoreEntry& e : list_binaries(store, filter, served)) {
      totals["binary"].rows++;
      totals["binary"].bytes += e.bytes;
      entries.push_back(std::move(e));
    }
  } else if (std::any_of(entries.begin(), entries.end(), [](const StoreEntry& e) { return e.kind == "binary"; })) {
    served = served_by(context, filter);
  }
  if (args.limit > 0 && std::ssize(entries) > args.limit) entries.resize(static_cast<std::size_t>(args.limit));
  if (context.json) {
    Json list = Json::array();
    for (const StoreEntry& e : entries) {
      list.push_back({{"kind", e.kind},
                      {"id", e.id},
                      {"summary", e.summary},
                      {"target", e.target},
                      {"device", e.device},
                      {"version", e.version},
                      {"bytes", e.bytes},
                      {"sequence", e.sequence},
                      {"layer", e.layer}});
      if (e.kind == "binary") list.back()["problems"] = served[e.kernel];
    }
    Json sums = Json::object();
    for (const auto& [kind, t] : totals) sums[kind] = {{"rows", t.rows}, {"bytes", t.bytes}};
    print_json(Json{{"path", store.path()}, {"totals", sums}, {"entries", list}});
    return kOk;
  }
  Table table({"kind", "id", "size", "target", "device", "version", "what"});
  for (const StoreEntry& e : entries)
    table.add({e.kind, e.id, bytes_text(static_cast<double>(e.bytes)), e.target, e.device, e.version,
               e.summary + (e.kind == "binary" ? problems_text(served[e.kernel]) : "")});
  if (!entries.empty()) print(table.text());
  std::string sums;
  for (const auto& [kind, t] : totals)
    sums += fmt::format("{}{} {} rows, {}", sums.empty() ? "" : "; ", kind, t.rows,
                        bytes_text(static_cast<double>(t.bytes)));
  const bool filtered = !(args.kind.empty() && args.arch.empty() && args.part.empty());
  print(fmt::format("{}: {}", store.path(), !sums.empty() ? sums : filtered ? "no such row" : "empty"));
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
  const std::int64_t freed = store.gc(args.max_bytes < 0 ? context.options().cache_cap : args.max_bytes, args.stale);
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

Json json(const MergeReport& r) {
  Json reasons = Json::object();
  for (const auto& [why, rows] : r.reasons) reasons[why] = rows;
  return {{"added", r.added}, {"kept", r.kept}, {"replaced", r.replaced}, {"refused", r.refused}, {"reasons", reasons}};
}

void print_merged(const MergeReport& r, const std::string& file) {
  print(fmt::format("{}{} added, {} replaced, {} kept, {} refused", file, r.added, r.replaced, r.kept, r.refused));
  for (const auto& [why, rows] : r.reasons) print(fmt::format("  refused: {} {}", rows, why));
}

int run_merge(const Context& context, const CacheArgs& args, bool everything) {
  for (const std::string& file : args.files)  // before anything is taken
    if (!std::filesystem::exists(file)) throw Error(ErrorCode::io, "file", file, "does not exist");
  Store store = open(context, false, false);
  need_file(store);
  MergeReport all;
  Json files = Json::array();
  for (const std::string& file : args.files) {
    const MergeReport r = everything ? store.merge_from(file) : store.import_from(file);
    all.added += r.added;
    all.kept += r.kept;
    all.replaced += r.replaced;
    all.refused += r.refused;
    for (const auto& [why, rows] : r.reasons) all.reasons[why] += rows;
    files.push_back(json(r));
    files.back()["file"] = file;
    if (!context.json) print_merged(r, args.files.size() > 1 ? file + ": " : "");
  }
  if (!context.json) return kOk;
  Json report = json(all);
  report["files"] = files;
  print_json(report);
  return kOk;
}

Json json(const Key& key) {
  Json fields = Json::object();
  for (const auto& [tag, value] : key.fields()) fields[tag] = value;
  return {{"hash", key.hash()}, {"fields", fields}};
}

// `keys`: with the keys, which name every header of a kernel by its hash.
Json json(const Explanation& e, bool keys) {
  Json out{{"problem", e.problem},
           {"bucket", e.bucket},
           {"arch", e.target},
           {"cache", e.cache},
           {"usable", !e.cache_degraded}};
  out["choice"] = e.choice ? Json{{"candidate", e.choice->candidate.text()},
                                  {"grade", to_string(e.choice->grade)},
                                  {"microseconds", e.choice->microseconds > 0 ? Json(e.choice->microseconds) : Json()},
                                  {"measured_for", e.measured_for.empty() ? Json() : Json(e.measured_for)}}
                           : Json();
  out["binary"] = e.binary.empty() ? Json() : Json(e.binary);
  out["device"] = e.device;
  Json ranges = Json::array(), outcomes = Json::array(), ranking = Json::array(), families = Json::array();
  Json stored = Json::array(), prewarmed = Json::array();
  for (const Explanation::Stored& s : e.stored)
    stored.push_back({{"device", s.device},
                      {"candidate", s.candidate.text()},
                      {"microseconds", s.microseconds},
                      {"measured_for", s.measured_for},
                      {"imported", s.imported},
                      {"binary", s.binary}});
  for (const Candidate& c : e.prewarmed) prewarmed.push_back(c.text());
  for (const RowRange& r : e.ranges) ranges.push_back(cli::json(r));
  for (const Outcome& o : e.outcomes)
    outcomes.push_back({{"candidate", o.candidate.text()},
                        {"kind", to_string(o.kind)},
                        {"detail", o.detail},
                        {"microseconds", o.microseconds},
                        {"rounds", o.rounds},
                        {"imported", o.imported}});
  for (const Explanation::Ranked& r : e.ranking)
    ranking.push_back({{"candidate", r.candidate.text()},
                       {"microseconds", r.microseconds},
                       {"memory", r.memory_us},
                       {"l2", r.l2_us},
                       {"matrix", r.matrix_us},
                       {"scalar", r.scalar_us},
                       {"waves", r.waves}});
  for (const Explanation::FamilyAnswer& f : e.families)
    families.push_back({{"family", f.family},
                        {"candidates", f.candidates},
                        {"why_not", f.why_not.empty() ? Json() : Json(f.why_not)}});
  out["stored"] = stored;
  out["prewarmed"] = prewarmed;
  out["ranges"] = ranges;
  out["measurements"] = outcomes;
  out["ranking"] = ranking;
  out["families"] = families;
  if (keys) {
    out["choice_key"] = e.choice_key ? json(*e.choice_key) : Json();
    out["binary_key"] = e.binary_key ? json(*e.binary_key) : Json();
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// The target of a GPU that need not be here: a chip that is known, or a device that the cache has choices of.
const Arch& arch_of_absent(Engine& engine, const std::string& name) {
  if (const Arch* chip = arch_of_chip(name)) return *chip;
  std::set<std::string> known;
  for (const auto& [key, row] : engine.store().all_choices()) {
    std::string device, target;
    for (const auto& [tag, value] : key.fields()) {
      if (tag == "device") device = value;
      if (tag == "target") target = value;
    }
    if (device.empty()) continue;
    if (lower(device).find(lower(name)) != std::string::npos) return arch(target);
    known.insert(device);
  }
  throw Error(ErrorCode::invalid_argument, "--device", name,
              fmt::format("cpu, the ordinal of a GPU, a chip such as H100, or part of the name of a device that the "
                          "cache has choices of ({}); --arch names a target",
                          known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
}

// The device to explain for, if it is here.
std::optional<Device> present(const Arch& target, const Options& options) {
  std::optional<Device> device;
  if (target.cpu) try {
      device = Device::open_cpu({.parallel_for = {}, .target = target.name});
    } catch (const Error&) {  // another CPU's
    }
  else if (Device::count(options.driver) > 0)
    device = Device::open(0, options.driver);
  if (device && std::string_view(device->arch().name) != target.name) device.reset();
  return device;
}

int run_explain(const Context& context, const CacheArgs& args) {
  Options options = context.options();
  options.cache_read_only = true;
  const Problem problem = args.problem.parse();
  const std::string& named = args.device;
  const bool here = named == "cpu" || named.starts_with("cpu:") ||
                    (!named.empty() && named.find_first_not_of("0123456789") == std::string::npos);
  Engine engine(options);
  std::optional<Device> device;
  if (here) device = need_device(named, options, "explain");
  const Arch& target = device          ? arch(device->arch().name)
                       : named.empty() ? arch_or_device(args.arch, options)
                                       : arch_of_absent(engine, named);
  if (!device) device = present(target, options);
  const Explanation explanation = engine.explanation(problem, target, device ? &*device : nullptr);
  if (context.json)
    print_json(json(explanation, context.verbose));
  else
    print(explanation.text(context.verbose));
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
      ->check(CLI::IsMember({"binary", "choice", "measurement", "list", "compiler", "environment"}));
  ls->add_option("--arch", args->arch, "Only rows for this target, e.g. sm_90a, cpu or native");
  ls->add_option("--problem", args->part, "Only rows whose problem contains this text, e.g. 'w=q4_0'")
      ->check(not_empty());
  ls->add_option("--limit", args->limit, "Print at most this many, those used last; 0: all")->check(at_least(0));
  add("show", "Print one row as JSON", run_show)
      ->add_option("id", args->id, "As ls prints it, or a prefix")
      ->required();
  add("verify", "Check every row; exit code 3 while damage remains", run_verify)
      ->add_flag("--repair", args->repair, "Delete damaged rows, make damaged indexes anew");
  CLI::App* gc = add("gc", "Evict the rows used longest ago, then compact", run_gc);
  gc->add_flag("--stale", args->stale,
               "First delete what other versions of the library wrote, which this one never uses");
  gc->add_option("--max-bytes", args->max_bytes, "Size to shrink to, e.g. 200M (default: the cap)")
      ->transform(size_in_bytes());
  CLI::App* out = add("export", "Write a new file that can be shipped read-only", run_export);
  out->add_option("file", args->file, "The file to write")->required()->check(not_empty());
  out->add_flag("--force", args->force, "Replace a file that is there, atomically");
  out->add_flag("--no-binaries", args->no_binaries, "Choices and measurements only");
  const auto from_files = [&](const char* name, const char* help, bool everything) {
    add(name, help, [everything](const Context& c, const CacheArgs& a) { return run_merge(c, a, everything); })
        ->add_option("file", args->files, "The files to read")
        ->required()
        ->check(not_empty());
  };
  from_files("import", "Take choices and measurements from files, never binaries", false);
  from_files("merge", "Take everything from files that you trust; the faster choice wins", true);
  CLI::App* explain = add("explain", "Say why a problem gets the kernel it gets; -v with the keys", run_explain);
  add_problem(explain, args->problem, true);
  CLI::Option* arch =
      explain->add_option("--arch", args->arch, "Target, e.g. sm_90a or cpu (default: this machine's GPU)");
  explain
      ->add_option(
          "--device", args->device,
          "cpu, the ordinal of a GPU, or a GPU by name that need not be here: H100, or one that the cache knows")
      ->excludes(arch)
      ->check(not_empty());
}

}  // namespace tilewright::cli
