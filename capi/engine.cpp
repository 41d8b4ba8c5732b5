// SPDX-License-Identifier: Apache-2.0
// The engine, what it says without a GPU, and its cache file.
#include "capi/handles.h"

using namespace tilewright;
using namespace tilewright::capi;

struct tw_plan : Handle {
  static constexpr char kKind[] = "plan";
  explicit tw_plan(const std::vector<Planned>& plans) : Handle(kKind) {
    for (const Planned& p : plans) planned.emplace_back(p.candidate.text(), p.predicted_microseconds);
  }
  std::vector<std::pair<std::string, double>> planned;
};

namespace {

const Arch& arch_of(const char* name) { return arch(text(name, "arch")); }

tw_merge_report report_of(const MergeReport& r) { return {0, r.added, r.kept, r.replaced, r.refused}; }

}  // namespace

extern "C" {

tw_status tw_engine_create(const tw_options* options, tw_engine** engine, tw_error** error) {
  return guarded(error, [&] { create(engine, "engine", options ? handle(options).value : Options::from_env()); });
}
void tw_engine_retain(tw_engine* engine) { retain(engine); }
void tw_engine_release(tw_engine* engine) { release(engine); }

tw_status tw_prepare(tw_engine* engine, const tw_problem* problem, const tw_device* device, tw_stream stream,
                     tw_kernel** kernel, tw_error** error) {
  return guarded(error, [&] {
    required(kernel, "kernel");
    create(kernel, "kernel", handle(engine).value.prepare(handle(problem).value, handle(device).value, stream));
  });
}

tw_status tw_packed(tw_engine* engine, const tw_problem* problem, const char* arch, tw_problem** packed,
                    tw_error** error) {
  return guarded(error,
                 [&] { create(packed, "packed", handle(engine).value.packed(handle(problem).value, arch_of(arch))); });
}

tw_status tw_pack(tw_engine* engine, const tw_problem* packed, const tw_device* device, tw_stream stream,
                  tw_operand from, tw_mutable_operand to, tw_error** error) {
  return guarded(error, [&] {
    handle(engine).value.pack(handle(packed, "packed").value, handle(device).value, stream, operand(from), operand(to));
  });
}

tw_status tw_engine_stats(const tw_engine* engine, tw_stats* stats, tw_error** error) {
  return guarded(error, [&] {
    const Stats s = handle(engine).value.stats();
    write_struct(
        stats,
        {0, s.prepared, s.memory_hits, s.compiled, s.cache_hits, s.measured, s.warnings, s.compile_seconds, s.built_in},
        "stats");
  });
}

tw_status tw_explain(const tw_engine* engine, const tw_problem* problem, const char* arch, const tw_device* device,
                     char** explained, tw_error** error) {
  return guarded(error, [&] {
    char*& text = required(explained, "text");  // before the copy is made: an assignment computes its right side first
    text = copy_text(
        handle(engine).value.explain(handle(problem).value, arch_of(arch), device ? &handle(device).value : nullptr));
  });
}

tw_status tw_emit(const tw_engine* engine, const tw_problem* problem, const char* arch, char** source,
                  tw_error** error) {
  return guarded(error, [&] {
    char*& text = required(source, "source");
    text = copy_text(handle(engine).value.emit(handle(problem).value, arch_of(arch)).text);
  });
}

tw_status tw_compiler(const tw_engine* engine, char** version, char** path, tw_error** error) {
  return guarded(error, [&] {
    const CompilerInfo info = compiler_info(CompileOptions::of(handle(engine).value.options()));
    required(version, "version");
    required(path, "path");
    std::unique_ptr<char, decltype(&tw_free)> found(copy_text(info.version), &tw_free);
    *path = copy_text(info.path);
    *version = found.release();
  });
}

tw_status tw_plan_create(const tw_engine* engine, const tw_problem* problem, const char* arch, tw_plan** plan,
                         tw_error** error) {
  return guarded(error, [&] { create(plan, "plan", handle(engine).value.plan(handle(problem).value, arch_of(arch))); });
}
int32_t tw_plan_count(const tw_plan* plan) { return is_handle(plan) ? static_cast<int32_t>(plan->planned.size()) : -1; }
tw_status tw_plan_at(const tw_plan* plan, int32_t index, tw_planned* planned, tw_error** error) {
  return guarded(error, [&] {
    const auto& [candidate, microseconds] = handle(plan).planned[index_of(index, plan->planned.size(), "index")];
    write_struct(planned, {0, microseconds, candidate.c_str()}, "planned");
  });
}
void tw_plan_release(tw_plan* plan) { release(plan); }

const char* tw_cache_path(const tw_engine* engine) {
  return is_handle(engine) ? engine->value.store().path().c_str() : nullptr;
}

tw_status tw_cache_unwritable(const tw_engine* engine, char** why, tw_error** error) {
  return guarded(error, [&] {
    required(why, "why");
    const std::string reason = handle(engine).value.store().unwritable();
    *why = reason.empty() ? nullptr : copy_text(reason);
  });
}

tw_status tw_cache_export(tw_engine* engine, const char* path, int32_t with_binaries, int32_t replace,
                          tw_error** error) {
  return guarded(error, [&] {
    check_flag(with_binaries, "with_binaries");
    check_flag(replace, "replace");
    handle(engine).value.store().export_to(text(path, "path"), with_binaries != 0, replace != 0);
  });
}

tw_status tw_cache_merge(tw_engine* engine, const char* path, tw_merge_report* report, tw_error** error) {
  return guarded(error, [&] {
    write_struct(report, report_of({}), "report");  // refuses what is not one before anything is merged
    write_struct(report, report_of(handle(engine).value.store().merge_from(text(path, "path"))), "report");
  });
}

tw_status tw_cache_import(tw_engine* engine, const char* path, tw_merge_report* report, tw_error** error) {
  return guarded(error, [&] {
    write_struct(report, report_of({}), "report");
    write_struct(report, report_of(handle(engine).value.store().import_from(text(path, "path"))), "report");
  });
}

}  // extern "C"
