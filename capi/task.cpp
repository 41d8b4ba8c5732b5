// SPDX-License-Identifier: Apache-2.0
// Kernels of a caller's own, described by callbacks.
#include <fmt/format.h>

#include <span>

#include "capi/handles.h"

struct tw_task : tilewright::capi::Handle {
  static constexpr char kKind[] = "task";
  explicit tw_task(tilewright::Task t) : Handle(kKind), value(std::move(t)) {}
  const tilewright::Task value;
};

namespace tilewright::capi {
namespace {

// What a kernel may take as parameters: CUDA's limit since 12.1 on compute capability 7.0.
constexpr std::size_t kMostParams = 32764;

void check_callback(std::int32_t returned, const char* name, const std::string& of) {
  if (returned != 0)
    refuse(std::string("task.") + name, of, fmt::format("failed: the caller's function returned {}, not 0", returned));
}

GridAxis axis_of(const tw_grid_axis& a) { return {a.fixed, a.per_rows, a.per_cols}; }

LaunchPlan plan_of(const tw_launch_plan& given) {
  const tw_launch_plan p = read_struct(&given, "plan");
  LaunchPlan plan;
  plan.x = axis_of(p.x);
  plan.y = axis_of(p.y);
  plan.z = axis_of(p.z);
  plan.threads = p.threads;
  plan.cluster = p.cluster;
  plan.shared_bytes = p.shared_bytes;
  return plan;
}

Source source_of(const tw_task_spec& spec, const Candidate& candidate) {
  const std::string name = candidate.text();
  const char *text = nullptr, *entry = nullptr;
  tw_launch_plan plan = TW_LAUNCH_PLAN_INIT;
  check_callback(spec.source(spec.user, name.c_str(), &text, &entry, &plan), "source", name);
  Source source;
  source.name = std::string("task/") + candidate.family;
  source.text = std::string(capi::text(text, "task.source: text"));
  source.entry = capi::text(entry, "task.source: entry");
  source.plan = plan_of(plan);
  return source;
}

// Bytes of a buffer in a launch of `rows` rows.
std::size_t bytes_at(const Buffer& b, std::int64_t rows) {
  return b.row_bytes ? b.row_bytes * static_cast<std::size_t>(rows) : b.bytes;
}

std::string compare(const tw_task_spec& spec, const std::vector<Buffer>& buffers, std::span<const std::byte> got,
                    std::span<const std::vector<std::byte>> inputs, std::int64_t rows) {
  std::vector<const void*> output_pointers, input_pointers;
  std::size_t at = 0;
  for (const Buffer& b : buffers) {
    if (!b.output) continue;
    output_pointers.push_back(got.data() + at);
    at += bytes_at(b, rows);
  }
  for (const std::vector<std::byte>& input : inputs) input_pointers.push_back(input.data());
  const char* wrong = spec.compare(spec.user, output_pointers.data(), input_pointers.data(), rows);
  return wrong ? wrong : "";
}

Buffer buffer_of(const tw_task_spec& spec, std::size_t index) {
  const tw_task_buffer b = read_struct(&spec.buffers[index], "buffers");
  check_flag(b.output, "buffers.output");
  check_flag(b.scratch, "buffers.scratch");
  Buffer buffer;
  buffer.name = text(b.name, "buffers.name");
  buffer.bytes = b.bytes;
  buffer.row_bytes = b.row_bytes;
  buffer.output = b.output != 0;
  buffer.scratch = b.scratch != 0;
  if (!buffer.output && !buffer.scratch) {
    buffer.fill = [fill = spec.fill, user = spec.user, index, name = buffer.name](std::span<std::byte> bytes,
                                                                                  std::uint64_t seed) {
      check_callback(fill(user, static_cast<std::int32_t>(index), bytes.data(), bytes.size(), seed), "fill", name);
    };
  }
  return buffer;
}

Task task_of(const tw_task_spec& spec) {
  Task task;
  task.key = text(spec.key, "task.key");
  task.rows = spec.rows;
  task.cols = spec.cols;
  task.verify_rows = spec.verify_rows;
  task.min_bytes = spec.min_bytes;
  task.ops = spec.ops;
  if (spec.rows < 1) refuse("task.rows", std::to_string(spec.rows), "must be 1 or more");
  if (spec.cols < 1) refuse("task.cols", std::to_string(spec.cols), "must be 1 or more");
  if (spec.verify_rows < 1) refuse("task.verify_rows", std::to_string(spec.verify_rows), "must be 1 or more");
  if (spec.candidate_count == 0) refuse("task.candidates", "", "must have at least one");
  if (spec.buffer_count == 0) refuse("task.buffers", "", "must have at least one");
  required(spec.candidates, "task.candidates");
  required(spec.buffers, "task.buffers");
  if (!spec.source) refuse("task.source", "null", "must be a function");
  if (!spec.fill) refuse("task.fill", "null", "must be a function");
  if (!spec.arguments) refuse("task.arguments", "null", "must be a function");
  if (!spec.compare) refuse("task.compare", "null", "must be a function");
  for (std::size_t i = 0; i < spec.candidate_count; ++i)
    task.candidates.push_back(Candidate::parse(text(spec.candidates[i], "task.candidates")));
  for (std::size_t i = 0; i < spec.buffer_count; ++i) task.buffers.push_back(buffer_of(spec, i));
  task.source = [spec](const Candidate& candidate) { return source_of(spec, candidate); };
  task.arguments = [spec](std::span<void* const> pointers, std::int64_t rows) {
    std::vector<std::byte> params(kMostParams);
    const std::int32_t bytes = spec.arguments(spec.user, pointers.data(), rows, params.data(), params.size());
    if (bytes < 0 || static_cast<std::size_t>(bytes) > params.size())
      refuse("task.arguments", std::to_string(bytes), fmt::format("must be 0 to {} bytes", params.size()));
    params.resize(static_cast<std::size_t>(bytes));
    return params;
  };
  task.compare = [spec, buffers = task.buffers](std::span<const std::byte> got, std::span<const std::byte>,
                                                std::span<const std::vector<std::byte>> inputs, std::int64_t rows) {
    return compare(spec, buffers, got, inputs, rows);
  };
  return task;
}

}  // namespace
}  // namespace tilewright::capi

using namespace tilewright;
using namespace tilewright::capi;

extern "C" {

tw_status tw_task_create(const tw_task_spec* spec, tw_task** task, tw_error** error) {
  return guarded(error, [&] { create(task, "task", task_of(read_struct(spec, "task"))); });
}
void tw_task_release(tw_task* task) { release(task); }

tw_status tw_tune_task(tw_engine* engine, const tw_task* task, const tw_device* device, const tw_tune_policy* policy,
                       tw_tune_report** report, tw_error** error) {
  return guarded(error, [&] {
    required(report, "report");
    const TunePolicy p = policy_of(policy);
    create(report, "report", handle(engine).value.tune(handle(task).value, handle(device).value, p));
  });
}

tw_status tw_prepare_task(tw_engine* engine, const tw_task* task, const tw_device* device, tw_kernel** kernel,
                          tw_error** error) {
  return guarded(error, [&] {
    required(kernel, "kernel");
    create(kernel, "kernel", handle(engine).value.prepare(handle(task).value, handle(device).value));
  });
}

tw_status tw_prewarm_task(tw_engine* engine, const tw_task* task, const char* const* archs, size_t arch_count,
                          const tw_prewarm_policy* policy, tw_prewarm_report** report, tw_error** error) {
  return guarded(error, [&] {
    required(report, "report");
    const PrewarmPolicy p = policy_of(policy);
    const std::vector<const Arch*> targets = archs_of(archs, arch_count);
    create(report, "report", handle(engine).value.prewarm(handle(task).value, targets, p));
  });
}

tw_status tw_compile(const tw_engine* engine, const char* name, const char* source_text, const char* entry,
                     const char* arch_name, void** image, size_t* bytes, tw_kernel_info* info, char** log,
                     tw_error** error) {
  return guarded(error, [&] {
    Source source;
    source.name = text(name, "name");
    source.text = std::string(text(source_text, "text"));
    source.entry = text(entry, "entry");
    if ((image == nullptr) != (bytes == nullptr)) refuse("bytes", "", "must be given together with image");
    const Binary binary =
        compile(source, arch(text(arch_name, "arch")), CompileOptions::of(handle(engine).value.options()));
    if (info) write_struct(info, info_of(binary.plan, binary.resources), "info");
    std::unique_ptr<char, decltype(&tw_free)> copied(log ? copy_text(binary.log) : nullptr, &tw_free);
    if (image) {
      *image = copy_text({reinterpret_cast<const char*>(binary.image.data()), binary.image.size()});
      *bytes = binary.image.size();
    }
    if (log) *log = copied.release();
  });
}

}  // extern "C"
