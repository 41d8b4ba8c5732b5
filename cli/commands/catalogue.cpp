// SPDX-License-Identifier: Apache-2.0
// formats, encoders, archs, operations, families: what the library knows. Tables in docs/ are these, printed with
// --markdown.
#include <fmt/format.h>

#include <cmath>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

void show(const Context& context, bool markdown, const Json& json, const Table& table) {
  if (context.json)
    print_json(json);
  else
    print(markdown ? table.markdown() : table.text());
}

const char* scope_name(Scope scope) { return scope == Scope::block ? "block" : scope == Scope::row ? "row" : "tensor"; }

int run_formats(const Context& context, bool markdown) {
  Json list = Json::array();
  Table table({"format", "bits", "block", "streams", "encoders", "what it is"});
  for (const Format f : Format::all()) {
    const FormatInfo& info = f.info();
    Json streams = Json::array(), encoders = Json::array();
    std::string stream_text, encoder_text;
    for (const StreamSpec& s : info.streams) {
      streams.push_back(
          {{"name", name_of(s.stream)}, {"scope", scope_name(s.scope)}, {"bytes", s.bytes}, {"rows", s.rows}});
      stream_text += fmt::format("{}{} {} B/{}{}", stream_text.empty() ? "" : ", ", name_of(s.stream), s.bytes,
                                 s.scope == Scope::block && info.block == 1 ? "element" : scope_name(s.scope),
                                 s.rows > 1 ? fmt::format(" of {} rows", s.rows) : "");
    }
    for (const char* e : info.encoders) {
      encoders.push_back(e);
      encoder_text += (encoder_text.empty() ? "" : ", ") + std::string(e);
    }
    list.push_back({{"name", info.name},
                    {"title", info.title},
                    {"bits", info.bits},
                    {"bits_per_element", f.bits_per_element()},
                    {"block", info.block},
                    {"layout_version", info.layout_version},
                    {"streams", streams},
                    {"encoders", encoders}});
    table.add({info.name, fmt::format("{:g}", f.bits_per_element()), std::to_string(info.block), stream_text,
               encoder_text.empty() ? "-" : encoder_text, info.title});
  }
  show(context, markdown, {{"formats", list}}, table);
  return kOk;
}

const char* infinity_name(Infinity i) {
  return i == Infinity::stays ? "infinity" : i == Infinity::saturates ? "largest" : "lost, and its group";
}
// Three digits, rounded up.
std::string bound_text(double v) {
  const double unit = std::pow(10.0, std::floor(std::log10(v)) - 2);
  return fmt::format("{:.3g}", std::ceil(v / unit * (1 - 1e-9)) * unit);
}
std::string error_text(const ErrorBound& e) {
  std::string text;
  const std::pair<double, const char*> terms[] = {
      {e.element, " x"}, {e.amax, " amax"}, {e.range, " range"}, {e.outer, " outer"}, {e.least, ""}};
  for (const auto& [factor, of] : terms)
    if (factor > 0) text += (text.empty() ? "" : " + ") + bound_text(factor) + of;
  return text.empty() ? "exact" : text;
}
std::string group_text(Format f) {
  const FormatInfo& info = f.info();
  if (info.error_columns == 0) return info.global_for ? "tensor" : "row";
  for (const StreamSpec& s : info.streams)
    if (s.rows > 1) return fmt::format("{} x {}", s.rows, info.error_columns);
  return std::to_string(info.error_columns);
}

// One row per encoder: how exact it is.
int run_encoders(const Context& context, bool markdown) {
  Json list = Json::array();
  Table table({"format", "encoder", "group", "error at most", "up to", "NaN", "infinity", "source"});
  for (const Format f : Format::all()) {
    const FormatInfo& info = f.info();
    for (std::size_t i = 0; i < info.encoders.size(); ++i) {
      const ErrorBound& e = info.errors[i];
      list.push_back({{"format", info.name},
                      {"encoder", info.encoders[i]},
                      {"source", info.source},
                      {"error_columns", info.error_columns},
                      {"error",
                       {{"element", e.element},
                        {"amax", e.amax},
                        {"range", e.range},
                        {"outer", e.outer},
                        {"least", e.least},
                        {"largest", e.largest}}},
                      {"keeps_nan", info.keeps_nan},
                      {"infinity", infinity_name(info.infinity)}});
      table.add({info.name, info.encoders[i], group_text(f), error_text(e), fmt::format("{:.6g}", e.largest),
                 info.keeps_nan ? "NaN" : "a number", infinity_name(info.infinity), info.source});
    }
  }
  show(context, markdown, {{"encoders", list}}, table);
  return kOk;
}

std::string features(const Arch& a) {
  std::string out;
  const std::pair<bool, const char*> all[] = {
      {a.mma_bf16, "bf16 mma"},           {a.mma_s8_k32, "int8 mma"}, {a.cp_async, "cp.async"}, {a.mma_f8, "fp8 mma"},
      {a.mma_scaled, "block-scaled mma"}, {a.clusters, "clusters"},   {a.tma, "TMA"},           {a.wgmma, "wgmma"}};
  for (const auto& [on, name] : all)
    if (on) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

Json json_of(const Arch& a) {
  return {{"name", a.name},
          {"compute_capability", fmt::format("{}.{}", a.major, a.minor)},
          {"cp_async", a.cp_async},
          {"mma_bf16", a.mma_bf16},
          {"mma_s8_k32", a.mma_s8_k32},
          {"mma_f8", a.mma_f8},
          {"mma_scaled", a.mma_scaled},
          {"clusters", a.clusters},
          {"tma", a.tma},
          {"wgmma", a.wgmma},
          {"shared_per_block", a.shared_per_block},
          {"shared_per_sm", a.shared_per_sm},
          {"threads_per_sm", a.threads_per_sm},
          {"run_on", a.run_on ? Json(a.run_on) : Json()}};
}

int run_archs(const Context& context, bool markdown) {
  Json list = Json::array(), devices = Json::array();
  Table table({"target", "compute capability", "shared memory per block", "features", "kernels have run on"});
  for (const Arch& a : archs()) {
    list.push_back(json_of(a));
    table.add({a.name, fmt::format("{}.{}", a.major, a.minor), bytes_text(a.shared_per_block), features(a),
               a.run_on ? a.run_on : "compiled, not run on hardware"});
  }
  std::string lines;
  const Options options = context.options();
  for (int i = 0; !markdown && i < Device::count(options.driver); ++i) {
    try {
      const Device d = Device::open(i, options.driver);
      devices.push_back({{"ordinal", i},
                         {"name", d.name()},
                         {"arch", d.arch().name},
                         {"sms", d.sms()},
                         {"driver", d.driver_version()}});
      lines += fmt::format("device {}: {}, target {}, {} SMs, driver {}\n", i, d.name(), d.arch().name, d.sms(),
                           d.driver_version());
    } catch (const Error& e) {
      lines += fmt::format("device {}: cannot be used: {}\n", i, e.what());
    }
  }
  Json cpus = Json::array();
  std::string names;
  for (const Arch& a : cpu_archs()) {
    cpus.push_back(a.name);
    names += (names.empty() ? "" : ", ") + std::string(a.name);
  }
  show(context, markdown, {{"archs", list}, {"devices", devices}, {"cpu_archs", cpus}, {"cpu", host_arch().name}},
       table);
  if (!context.json && !markdown)
    print(fmt::format("{}\ntargets for CPUs: {}; this machine's is {}",
                      lines.empty() ? "no device in this machine" : lines.substr(0, lines.size() - 1), names,
                      host_arch().name));
  return kOk;
}

int run_families(const Context& context, bool markdown) {
  Json list = Json::array();
  Table table({"operation", "family", "what it is"});
  for (const Operation* op : operations())
    for (const auto& families : {op->families(), op->cpu_families()})
      for (const Family* f : families) {
        list.push_back({{"op", op->name()}, {"name", f->name()}, {"title", f->title()}});
        table.add({std::string(op->name()), std::string(f->name()), std::string(f->title())});
      }
  show(context, markdown, {{"families", list}}, table);
  return kOk;
}

int run_operations(const Context& context, bool markdown) {
  Json list = Json::array();
  Table table({"operation", "field", "value", "", "what it is"});
  for (const Operation* op : operations()) {
    Json fields = Json::array();
    for (const FieldInfo& f : op->fields()) {
      fields.push_back({{"name", f.name}, {"value", f.value}, {"required", f.required}, {"help", f.help}});
      table.add({std::string(op->name()), f.name, f.value, f.required ? "required" : "", f.help});
    }
    list.push_back({{"name", op->name()}, {"title", op->title()}, {"fields", fields}});
  }
  show(context, markdown, {{"operations", list}}, table);
  return kOk;
}

}  // namespace

void add_catalogue(Context& context) {
  const auto add = [&](const char* name, const char* help, int (*run)(const Context&, bool)) {
    CLI::App* command = add_command(context, *context.app, name, help);
    auto markdown = std::make_shared<bool>(false);
    command->add_flag("--markdown", *markdown, "Print a Markdown table");
    command->callback(
        [&context, markdown, run] { context.action = [&context, markdown, run] { return run(context, *markdown); }; });
  };
  add("formats", "List the number formats", run_formats);
  add("encoders", "List the rules by which formats are encoded, and how exact each is", run_encoders);
  add("archs", "List the GPU targets, and this machine's devices", run_archs);
  add("operations", "List the operations and the fields of their problems", run_operations);
  add("families", "List the kernel families of each operation, in the order they are asked", run_families);
}

}  // namespace tilewright::cli
