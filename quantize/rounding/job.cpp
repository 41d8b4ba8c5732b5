// SPDX-License-Identifier: Apache-2.0
#include "quantize/rounding/job.h"

#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/text.h>

#include <cmath>
#include <numeric>

#include "support/must_be.h"

namespace tilewright::quantize {
namespace {

// Columns in the order of GPTQ's act-order, where they lie in the streams, and what the streams' order is then.
std::vector<std::int32_t> order_columns(Job& job) {
  std::stable_sort(job.order.begin(), job.order.end(), [&](std::int32_t a, std::int32_t b) {
    return job.hessian.tiles.at(a, a) > job.hessian.tiles.at(b, b);
  });
  job.places = job.order;
  if (job.static_groups) return {};
  // Within a group the streams keep w's order, so that g_idx says everything.
  std::vector<std::int32_t> stored = job.order, place_of(stored.size());
  for (std::int64_t g = 0; g < job.groups; ++g)
    std::sort(stored.begin() + g * job.group, stored.begin() + std::min((g + 1) * job.group, job.layer.k));
  for (std::size_t i = 0; i < stored.size(); ++i) place_of[at(stored[i])] = static_cast<std::int32_t>(i);
  for (std::size_t i = 0; i < stored.size(); ++i) job.places[i] = place_of[at(job.order[i])];
  if (std::is_sorted(stored.begin(), stored.end())) stored.clear();
  return stored;
}

}  // namespace

Job::Job(const LinearWeight& l, const Hessian& h, const QuantizeTarget& target)
    : layer(l), name(printable(l.name)), hessian(h.sums()), rounder(target.format, target.encoder, name) {
  const auto refuse = [&](const char* field, const std::string& value, const std::string& allowed) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} {}", name, field), value, allowed);
  };
  if (layer.n < 1 || layer.n > INT32_MAX) refuse("n", std::to_string(layer.n), "must be 1 to 2147483647");
  if (layer.k != hessian.k)
    refuse("k", std::to_string(layer.k), fmt::format("must be {}, as wide as the Hessian", hessian.k));
  const std::int64_t block = rounder.format().block();
  if (layer.k % block)
    refuse("k", std::to_string(layer.k),
           fmt::format("must be a multiple of {}, the block of {}", block, target.format.name()));
  if (static_cast<std::int64_t>(layer.w.size()) != layer.n * layer.k)
    refuse("w", fmt::format("{} elements", layer.w.size()), fmt::format("must have {} x {} (n, k)", layer.n, layer.k));
  if (!hessian.rows) refuse("Hessian", "0 rows", "must have calibration data: add at least one row");
  const bool whole = target.group == -1 || (rounder.row_scaled() && target.group == 0);
  group = whole ? layer.k : target.group == 0 ? block : target.group;
  if (rounder.row_scaled() ? group != layer.k : group < 1 || group % block)
    refuse("group", std::to_string(target.group),
           rounder.row_scaled()
               ? fmt::format("must be 0, -1 or k: {} has one scale per row", target.format.name())
               : fmt::format("must be 0, -1, or a multiple of {}, the block of {}", block, target.format.name()));
  group = std::min(group, layer.k);
  groups = (layer.k + group - 1) / group;
  threads = thread_count(target.threads);
  for (std::size_t i = 0; i < layer.w.size(); ++i)
    if (!std::isfinite(layer.w[i]))
      refuse(fmt::format("w[{}, {}]", static_cast<std::int64_t>(i) / layer.k, static_cast<std::int64_t>(i) % layer.k)
                 .c_str(),
             fmt::format("{}", layer.w[i]), "must be a finite number");
  order.resize(at(layer.k));
  std::iota(order.begin(), order.end(), 0);
  places = order;
}

void Job::refuse_scale(std::int64_t row, std::int64_t of, float low, float high) const {
  throw Error(ErrorCode::unsupported, fmt::format("{} w, row {}, group {}", name, row, of),
              fmt::format("{} to {}", low, high),
              fmt::format("must be values whose scale {} can hold", rounder.format().name()));
}

GptqJob::GptqJob(const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target,
                 const GptqOptions& options)
    : job(layer, hessian, target), damping(options.damping) {
  if (!(damping >= 0 && damping <= 1))
    throw must_be(fmt::format("{} damping", job.name), fmt::format("{}", damping), "0 to 1");
  job.static_groups = options.static_groups;
  if (options.act_order) stored = order_columns(job);
  double sum = 0;
  job.dead.resize(at(job.layer.k));
  for (std::int64_t j = 0; j < job.layer.k; ++j) {
    const double v = job.hessian.tiles.at(j, j);
    job.dead[at(j)] = v == 0;
    if (v == 0)
      ++dead;
    else
      sum += v;
  }
  if (dead < job.layer.k) mean = sum / static_cast<double>(job.layer.k - dead);
}

void GptqJob::damp_more() {
  if (damping >= 1)
    throw must_be(fmt::format("{} Hessian", job.name),
                  fmt::format("not positive definite with a damping of {}", damping),
                  "sums of x x^T, as Hessian::add() makes them");
  damping = std::min(1.0, std::max(10 * damping, 1e-6));
}

void GptqJob::finish(QuantizedLinear& q) {
  q.order = std::move(stored);
  q.damping = damping;
  q.dead_columns = dead;
}

}  // namespace tilewright::quantize
