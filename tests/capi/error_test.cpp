// SPDX-License-Identifier: Apache-2.0
// Errors as objects, null and stale handles, and structs of other sizes.
#include <functional>
#include <thread>

#include "capi/capi_test.h"

namespace tilewright::test {
namespace {

TEST_CASE("an error says code, field, value and what is allowed") {
  tw_problem* made = nullptr;
  const Failure f =
      failure([&](tw_error** e) { return tw_problem_parse("gemm x=q8_1 w=q4_9 y=f32 m=1 n=64 k=64", &made, e); });
  CHECK(f.status == TW_INVALID_ARGUMENT);
  CHECK(f.field == "w");
  CHECK(f.value == "q4_9");
  CHECK(f.allowed.find("q4_0") != std::string::npos);
  CHECK(f.message.starts_with("w must be one of "));
  CHECK(f.message.find("(got q4_9)") != std::string::npos);
  CHECK(made == nullptr);
  CHECK(std::string(tw_status_name(f.status)) == "invalid_argument");
}

TEST_CASE("the last error belongs to its thread and outlives a success") {
  CHECK(tw_problem_parse("gemm", nullptr, nullptr) == TW_INVALID_ARGUMENT);
  const std::string said = tw_error_message(tw_last_error());
  std::thread([&] {
    CHECK(tw_last_error() == nullptr);
    tw_problem* none = nullptr;
    CHECK(tw_problem_parse("conv", &none, nullptr) != TW_OK);
    CHECK(tw_error_message(tw_last_error()) != said);
  }).join();
  const ProblemHandle fine = problem("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64");
  CHECK(tw_error_message(tw_last_error()) == said);
}

TEST_CASE("a null error object has empty texts, and is released") {
  CHECK(tw_error_status(nullptr) == TW_OK);
  for (const auto text :
       {tw_error_message, tw_error_field, tw_error_value, tw_error_allowed, tw_error_log, tw_error_source})
    CHECK(std::string(text(nullptr)).empty());
  tw_error_release(nullptr);
  tw_free(nullptr);
}

TEST_CASE("a null handle or output is an error that names it, in every function") {
  fake_cuda_reset();
  const ProblemHandle p = problem("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64");
  const EngineHandle en = engine();
  const DeviceHandle d = fake_device();
  tw_kernel* kernel = nullptr;
  tw_problem* other = nullptr;
  tw_tune_report* report = nullptr;
  tw_prewarm_report* warmed = nullptr;
  tw_merge_report merged = TW_MERGE_REPORT_INIT;
  tw_stats stats = TW_STATS_INIT;
  char *text = nullptr, *more = nullptr;
  void* image = nullptr;
  int64_t bytes = 0;
  const char* name = nullptr;
  const struct {
    const char* field;
    std::function<tw_status(tw_error**)> call;
  } cases[] = {
      {"text", [&](tw_error** e) { return tw_problem_parse(nullptr, &other, e); }},
      {"problem", [&](tw_error** e) { return tw_problem_parse("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64", nullptr, e); }},
      {"operation", [&](tw_error** e) { return tw_problem_create(nullptr, nullptr, nullptr, 0, &other, e); }},
      {"names", [&](tw_error** e) { return tw_problem_create("gemm", nullptr, nullptr, 1, &other, e); }},
      {"gemm", [&](tw_error** e) { return tw_problem_from_gemm(nullptr, &other, e); }},
      {"problem", [&](tw_error** e) { return tw_problem_with_rows(nullptr, 1, &other, e); }},
      {"options", [&](tw_error** e) { return tw_options_set(nullptr, "cache", "", e); }},
      {"options", [&](tw_error** e) { return tw_options_create(nullptr, e); }},
      {"engine", [&](tw_error** e) { return tw_engine_create(nullptr, nullptr, e); }},
      {"engine", [&](tw_error** e) { return tw_prepare(nullptr, p.get(), d.get(), nullptr, &kernel, e); }},
      {"problem", [&](tw_error** e) { return tw_prepare(en.get(), nullptr, d.get(), nullptr, &kernel, e); }},
      {"device", [&](tw_error** e) { return tw_prepare(en.get(), p.get(), nullptr, nullptr, &kernel, e); }},
      {"kernel", [&](tw_error** e) { return tw_prepare(en.get(), p.get(), d.get(), nullptr, nullptr, e); }},
      {"arch", [&](tw_error** e) { return tw_packed(en.get(), p.get(), nullptr, &other, e); }},
      {"packed", [&](tw_error** e) { return tw_pack(en.get(), nullptr, d.get(), nullptr, {}, {}, e); }},
      {"stats", [&](tw_error** e) { return tw_engine_stats(en.get(), nullptr, e); }},
      {"engine", [&](tw_error** e) { return tw_engine_stats(nullptr, &stats, e); }},
      {"text", [&](tw_error** e) { return tw_explain(en.get(), p.get(), "sm_90a", nullptr, nullptr, e); }},
      {"source", [&](tw_error** e) { return tw_emit(en.get(), p.get(), "sm_90a", nullptr, e); }},
      {"version", [&](tw_error** e) { return tw_compiler(en.get(), nullptr, &more, e); }},
      {"plan", [&](tw_error** e) { return tw_plan_create(en.get(), p.get(), "sm_90a", nullptr, e); }},
      {"plan", [&](tw_error** e) { return tw_plan_at(nullptr, 0, nullptr, e); }},
      {"report", [&](tw_error** e) { return tw_tune(en.get(), p.get(), d.get(), nullptr, nullptr, e); }},
      {"engine", [&](tw_error** e) { return tw_tune(nullptr, p.get(), d.get(), nullptr, &report, e); }},
      {"task", [&](tw_error** e) { return tw_tune_task(en.get(), nullptr, d.get(), nullptr, &report, e); }},
      {"task", [&](tw_error** e) { return tw_task_create(nullptr, nullptr, e); }},
      {"archs", [&](tw_error** e) { return tw_prewarm(en.get(), nullptr, 0, nullptr, 0, nullptr, &warmed, e); }},
      {"problems", [&](tw_error** e) { return tw_prewarm(en.get(), nullptr, 1, nullptr, 0, nullptr, &warmed, e); }},
      {"report", [&](tw_error** e) { return tw_tune_report_summary(nullptr, nullptr, e); }},
      {"path", [&](tw_error** e) { return tw_cache_export(en.get(), nullptr, 1, 0, e); }},
      {"path", [&](tw_error** e) { return tw_cache_merge(en.get(), nullptr, &merged, e); }},
      {"report", [&](tw_error** e) { return tw_cache_import(en.get(), "x", nullptr, e); }},
      {"device", [&](tw_error** e) { return tw_device_describe(nullptr, nullptr, e); }},
      {"device", [&](tw_error** e) { return tw_memory_create(nullptr, 1, nullptr, e); }},
      {"memory", [&](tw_error** e) { return tw_memory_fill(nullptr, 0, e); }},
      {"stream", [&](tw_error** e) { return tw_stream_synchronize(nullptr, e); }},
      {"kernel", [&](tw_error** e) { return tw_kernel_describe(nullptr, 1, nullptr, nullptr, e); }},
      {"format", [&](tw_error** e) { return tw_stream_bytes(nullptr, TW_DATA, 1, 32, &bytes, e); }},
      {"bytes", [&](tw_error** e) { return tw_stream_bytes("f32", TW_DATA, 1, 32, nullptr, e); }},
      {"values",
       [&](tw_error** e) {
         return tw_encode("f32", nullptr, nullptr, 1, 32, {&bytes, nullptr, nullptr}, e);
       }},
      {"to.data", [&](tw_error** e) { return tw_encode("f32", nullptr, nullptr, 1, 32, {}, e); }},
      {"from.data", [&](tw_error** e) { return tw_decode("f32", {}, 1, 32, nullptr, e); }},
      {"factor", [&](tw_error** e) { return tw_global_for("nvfp4", 1, nullptr, e); }},
      {"gemm", [&](tw_error** e) { return tw_packed_bytes(nullptr, TW_DATA, &bytes, e); }},
      {"model", [&](tw_error** e) { return tw_model_tensor(nullptr, 0, nullptr, e); }},
      {"path", [&](tw_error** e) { return tw_model_open(nullptr, nullptr, e); }},
      {"weight", [&](tw_error** e) { return tw_import_order(nullptr, nullptr, nullptr, e); }},
      {"like",
       [&](tw_error** e) { return tw_export_weights("q4_0", nullptr, 0, nullptr, 0, nullptr, nullptr, nullptr, e); }},
      {"name",
       [&](tw_error** e) {
         return tw_compile(en.get(), nullptr, "", "", "sm_90a", &image, nullptr, nullptr, &text, e);
       }},
      {"name", [&](tw_error** e) { return tw_operation_at(0, nullptr, &name, e); }},
      {"problem", [&](tw_error** e) { return tw_layer_describe(nullptr, "sm_90a", nullptr, 1, nullptr, e); }},
      {"layer", [&](tw_error** e) { return tw_layer_create(en.get(), nullptr, nullptr, nullptr, 1, nullptr, e); }},
      {"layer", [&](tw_error** e) { return tw_layer_load(nullptr, nullptr, {}, e); }},
      {"layer", [&](tw_error** e) { return tw_layer_pack(nullptr, nullptr, {}, {}, e); }},
      {"layer", [&](tw_error** e) { return tw_layer_kernel(nullptr, &kernel, e); }},
  };
  for (const auto& c : cases) {
    CAPTURE(c.field, &c - cases);
    const Failure f = failure(c.call);
    CHECK(f.status == TW_INVALID_ARGUMENT);
    CHECK(f.field == c.field);
  }
  CHECK(kernel == nullptr);
  CHECK(report == nullptr);
  CHECK(warmed == nullptr);
  CHECK(launch_failure(tw_launch_gemm(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 1)).field == "kernel");
  CHECK(launch_failure(tw_launch_gemm_args(nullptr, nullptr, nullptr)).field == "kernel");
  CHECK(tw_problem_text(nullptr) == nullptr);
  CHECK(tw_problem_rows(nullptr) == -1);
  CHECK(tw_plan_count(nullptr) == -1);
  CHECK(tw_model_metadata(nullptr, "x") == nullptr);
  CHECK(tw_prewarm_report_failure(nullptr, 0) == nullptr);
}

TEST_CASE("a handle of another kind is refused") {
  const ProblemHandle p = problem("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64");
  tw_stats stats = TW_STATS_INIT;
  const Failure f =
      failure([&](tw_error** e) { return tw_engine_stats(reinterpret_cast<tw_engine*>(p.get()), &stats, e); });
  CHECK(f.field == "engine");
  CHECK(f.value == "no such handle");
}

TEST_CASE("release and getters leave a handle of another kind alone") {
  const ProblemHandle p = problem("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64");
  tw_options* made = nullptr;
  succeed([&](tw_error** e) { return tw_options_create(&made, e); });
  const OptionsHandle options(made);
  for (int i = 0; i < 3; ++i) {
    tw_memory_release(reinterpret_cast<tw_memory*>(p.get()));
    tw_engine_release(reinterpret_cast<tw_engine*>(p.get()));
    tw_problem_release(reinterpret_cast<tw_problem*>(options.get()));
  }
  CHECK(tw_problem_rows(p.get()) == 1);
  const auto* other = reinterpret_cast<const tw_problem*>(options.get());
  CHECK(tw_problem_text(other) == nullptr);
  CHECK(tw_problem_rows(other) == -1);
  CHECK(tw_problem_cols(other) == -1);
  CHECK(tw_problem_ops(other) == -1);
  CHECK(tw_memory_data(reinterpret_cast<const tw_memory*>(p.get())) == nullptr);
  CHECK(tw_memory_size(reinterpret_cast<const tw_memory*>(p.get())) == 0);
  CHECK(tw_plan_count(reinterpret_cast<const tw_plan*>(p.get())) == -1);
  CHECK(tw_model_tensor_count(reinterpret_cast<const tw_model*>(p.get())) == -1);
  CHECK(tw_prewarm_report_failure(reinterpret_cast<const tw_prewarm_report*>(p.get()), 0) == nullptr);
  CHECK(tw_cache_path(reinterpret_cast<const tw_engine*>(p.get())) == nullptr);
}

TEST_CASE("references are counted") {
  tw_problem* p = problem("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64").release();
  tw_problem_retain(p);
  tw_problem_release(p);
  CHECK(tw_problem_rows(p) == 1);
  tw_problem_release(p);
  tw_problem_retain(nullptr);
  tw_problem_release(nullptr);
}

// A struct of a later version of the header: the same, and more behind it.
struct Later {
  tw_gemm gemm = TW_GEMM_INIT;
  uint64_t more = 0;
};

TEST_CASE("a struct may be larger if what this library does not know is zero, and never smaller") {
  Later later;
  later.gemm.struct_size = sizeof later;
  later.gemm.x = later.gemm.w = later.gemm.y = "f16";
  later.gemm.m = 1, later.gemm.n = later.gemm.k = 64;
  tw_problem* made = nullptr;
  succeed([&](tw_error** e) { return tw_problem_from_gemm(&later.gemm, &made, e); });
  tw_problem_release(made);
  later.more = 1;
  Failure f = failure([&](tw_error** e) { return tw_problem_from_gemm(&later.gemm, &made, e); });
  CHECK(f.status == TW_UNSUPPORTED);
  CHECK(f.field == "gemm.struct_size");
  for (const uint32_t size : {0u, 3u, static_cast<uint32_t>(sizeof(tw_gemm)) - 8, 0xffffffffu}) {
    later.gemm.struct_size = size;
    f = failure([&](tw_error** e) { return tw_problem_from_gemm(&later.gemm, &made, e); });
    CHECK(f.status == TW_INVALID_ARGUMENT);
    CHECK(f.field == "gemm.struct_size");
  }
}

TEST_CASE("a struct that is filled in keeps the size that the caller wrote, and what lies behind it") {
  struct {
    tw_format_info info = TW_FORMAT_INFO_INIT;
    uint64_t behind = 0;
  } larger;
  larger.info.struct_size = sizeof larger;
  succeed([&](tw_error** e) { return tw_format_find("q4_0", &larger.info, e); });
  CHECK(larger.info.struct_size == sizeof larger);
  CHECK(std::string(larger.info.name) == "q4_0");
  CHECK(larger.behind == 0);
}

}  // namespace
}  // namespace tilewright::test
