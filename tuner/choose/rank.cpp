// SPDX-License-Identifier: Apache-2.0
#include "tuner/choose/rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace tilewright::tuner {
namespace {

constexpr double kTypicalL2 = 40e6;  // bytes, when no device says
// Factors that raise a candidate's predicted time for its likeness to one already taken (1: a copy of it), and
// for each taken one with the same tile. The model is off by about as much, so within it variety is worth more.
constexpr double kAlikePenalty = 0.25, kTilePenalty = 0.04;
// refine(): weight of the mean error beside that of the measured candidates, and what a likeness to one already taken
// in the same batch costs.
constexpr double kPriorWeight = 0.05, kTwinPenalty = 0.05;
constexpr double kFarPenalty = 1.15;
constexpr double kTailLoss = 0.1;  // of the bandwidth that an idle multiprocessor could have had

// 1 when `have` covers `need`, have / need when it is far below, with a soft knee between: queues fill gradually.
double saturation(double have, double need) {
  if (need <= 0) return 1;
  double x = have / need;
  return x / std::pow(1 + x * x * x * x, 0.25);
}

}  // namespace

DeviceModel model_of(const Arch& arch) {
  return {double(arch.typical_sms),   arch.typical_tbps,           arch.typical_mma16_tf,
          double(arch.shared_per_sm), double(arch.threads_per_sm), kTypicalL2};
}

DeviceModel model_of(const Device& device) {
  DeviceModel m = model_of(device.arch());
  if (device.sms() > 0) {
    m.mma16_tf *= device.sms() / m.sms;
    m.sms = device.sms();
  }
  if (device.l2_bytes() > 0) m.l2_bytes = static_cast<double>(device.l2_bytes());
  return m;
}

Prediction predict(const Traits& t, const DeviceModel& m, const CostConstants& c) {
  double threads = std::max(32, t.threads);
  double per_sm =
      std::min({c.blocks_per_sm, m.threads_per_sm / threads, m.shared_per_sm / (t.shared_bytes + c.shared_reserved),
                c.registers_per_sm / (std::max(24, t.registers) * threads)});
  per_sm = std::max(1.0, std::floor(per_sm));
  double blocks = std::max(1.0, t.blocks);
  double resident = std::min(blocks, per_sm * m.sms);       // blocks at a time, whole chip
  double busy = std::min(1.0, blocks / m.sms);              // share of SMs with any work
  double warps = resident / (m.sms * busy) * threads / 32;  // per busy SM

  Prediction p;
  p.concurrent = per_sm * m.sms;
  p.waves = std::ceil(blocks / p.concurrent);
  // Little's law: bandwidth needs latency * bandwidth bytes under way.
  double in_flight = resident * threads * std::max(4.0, t.bytes_in_flight);
  double need = m.tbps * 1e12 * c.memory_latency_us * 1e-6;
  double streaming = saturation(in_flight, need);
  // The last wave is rarely full, but its blocks have the memory to themselves.
  double fill = blocks / (p.waves * per_sm * m.sms);
  double tail = p.waves > 1 ? 1 + kTailLoss * (1 / fill - 1) : 1;
  p.memory_us = t.unique_bytes / (m.tbps * 1e6) / streaming * tail;
  p.l2_us = t.global_bytes / (m.tbps * c.l2_ratio * 1e6) / saturation(in_flight, need * 0.5) * tail;

  // The units of an SM are shared by its blocks: the SM with the most blocks ends last.
  double rounds = std::ceil(blocks / m.sms);
  p.copy_us = ((t.copied_rows - t.padding_rows) * c.row_clk + t.padding_rows * c.padding_clk) / blocks * rounds /
              (c.clock_ghz * 1e3);
  double mma_sm = m.mma16_tf * 1e6 / m.sms * std::max(1e-3, t.mma_rate) *
                  saturation(std::min(warps, 64.0) * std::min(t.mma_in_flight, 32.0), c.mma_in_flight);
  p.mma_us = t.mma_ops > 0 ? t.mma_ops / blocks * rounds / mma_sm : 0;
  p.shared_us = t.shared_traffic / blocks * rounds / (c.shared_bytes_clk * c.clock_ghz * 1e3);
  double alu_sm =
      c.alu_lanes * c.clock_ghz * 1e3 * saturation(warps * std::min(t.alu_in_flight, c.alu_chains), c.alu_warps);
  p.alu_us = t.alu_ops > 0 ? t.alu_ops / blocks * rounds / alu_sm : 0;

  std::array<double, 3> parts{std::max({p.memory_us, p.l2_us, p.copy_us}), std::max(p.mma_us, p.shared_us), p.alu_us};
  std::sort(parts.begin(), parts.end());
  p.microseconds = c.launch_us + c.block_us * (1 + t.later_wave_cost * (p.waves - 1)) + parts[2] +
                   c.overlap_loss * (parts[0] + parts[1]);
  return p;
}

std::vector<Ranked> rank(const Problem& problem, const Arch& arch, const DeviceModel& model,
                         const CostConstants& constants) {
  std::vector<Ranked> all;
  const auto list = families(problem.op(), arch);
  std::size_t fallback_from = 0;
  for (const Family* family : list) {
    if (family == list.back()) fallback_from = all.size();
    for (Candidate& candidate : family->candidates(problem, arch)) {
      Ranked r{family, std::move(candidate), {}, {}};
      r.traits = family->traits(problem, arch, r.candidate);
      r.prediction = predict(r.traits, model, constants);
      all.push_back(std::move(r));
    }
  }
  auto faster = [](const Ranked& a, const Ranked& b) { return a.prediction.microseconds < b.prediction.microseconds; };
  std::stable_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(fallback_from), faster);
  std::stable_sort(all.begin() + static_cast<std::ptrdiff_t>(fallback_from), all.end(), faster);
  return all;
}

std::optional<Candidate> ranked_first(const Problem& problem, const Arch& arch, const DeviceModel& model,
                                      const CostConstants& constants) {
  const auto cost = [&](const Traits& t) { return predict(t, model, constants).microseconds; };
  const auto list = families(problem.op(), arch);
  std::optional<Family::Costed> best;
  for (const Family* family : list) {
    if (best && family == list.back()) break;
    auto own = family->cheapest(problem, arch, cost);
    if (own && (!best || own->cost < best->cost)) best = std::move(own);
  }
  if (!best) return {};
  return std::move(best->candidate);
}

double likeness(const Ranked& a, const Ranked& b) {
  if (a.family != b.family || a.candidate.knobs.size() != b.candidate.knobs.size()) return 0;
  int equal = 0;
  for (std::size_t i = 0; i < a.candidate.knobs.size(); ++i) equal += a.candidate.knobs[i] == b.candidate.knobs[i];
  return a.candidate.knobs.empty() ? 1 : static_cast<double>(equal) / static_cast<double>(a.candidate.knobs.size());
}

namespace {

int differing_knobs(const Ranked& a, const Ranked& b) {
  int knobs = static_cast<int>(a.candidate.knobs.size());
  return a.family == b.family ? knobs - static_cast<int>(std::lround(likeness(a, b) * knobs)) : knobs + 1;
}

bool same_tile(const Ranked& a, const Ranked& b) {
  return a.family == b.family && a.traits.tile_rows == b.traits.tile_rows && a.traits.tile_cols == b.traits.tile_cols;
}

}  // namespace

std::vector<int> select(const std::vector<Ranked>& ranked, int most) {
  struct Open {
    int index;
    double closest = 0;  // likeness to the most alike candidate taken
    int tiles = 0;       // taken ones with its tile
  };
  std::vector<Open> open;
  const Family* reference = ranked.empty() ? nullptr : ranked.back().family;
  for (int i = 0; i < static_cast<int>(ranked.size()); ++i)
    if (ranked[static_cast<std::size_t>(i)].family != reference) open.push_back({i});
  if (open.empty() && !ranked.empty()) open.push_back({0});

  std::vector<int> taken;
  std::map<const Family*, int> heard;  // how many of each family are taken
  for (const Open& o : open) heard[ranked[static_cast<std::size_t>(o.index)].family] = 0;
  while (!open.empty() && static_cast<int>(taken.size()) < most) {
    // The model compares families less well than candidates of one: the second and the fifth place go to the family
    // heard least.
    const Family* least = nullptr;
    if (taken.size() == 1 || taken.size() == 4)
      for (const Open& o : open) {
        const Family* f = ranked[static_cast<std::size_t>(o.index)].family;
        if (!least || heard[f] < heard[least]) least = f;
      }
    auto cost = [&](const Open& o) {
      const Ranked& r = ranked[static_cast<std::size_t>(o.index)];
      if (least && r.family != least) return std::numeric_limits<double>::infinity();
      return r.prediction.microseconds * (1 + kAlikePenalty * o.closest + kTilePenalty * o.tiles);
    };
    auto best =
        std::min_element(open.begin(), open.end(), [&](const Open& a, const Open& b) { return cost(a) < cost(b); });
    ++heard[ranked[static_cast<std::size_t>(best->index)].family];
    const Ranked& next = ranked[static_cast<std::size_t>(best->index)];
    taken.push_back(best->index);
    open.erase(best);
    for (Open& o : open) {
      const Ranked& r = ranked[static_cast<std::size_t>(o.index)];
      o.closest = std::max(o.closest, likeness(r, next));
      o.tiles += same_tile(r, next);
    }
  }
  return taken;
}

std::vector<int> refine(const std::vector<Ranked>& ranked, const std::vector<Measured>& measured,
                        const std::vector<int>& tried, int most, bool narrow) {
  if (ranked.empty()) return {};
  auto fastest = std::min_element(measured.begin(), measured.end(),
                                  [](const Measured& a, const Measured& b) { return a.microseconds < b.microseconds; });
  auto at = [&](int i) -> const Ranked& { return ranked[static_cast<std::size_t>(i)]; };
  auto error = [&](const Measured& m) { return std::log(m.microseconds / at(m.index).prediction.microseconds); };
  double mean = 0;
  for (const Measured& m : measured) mean += error(m) / static_cast<double>(measured.size());

  const Family* reference = ranked.back().family;
  std::vector<std::pair<double, int>> open;  // corrected prediction, index
  for (int i = 0; i < static_cast<int>(ranked.size()); ++i) {
    if (at(i).family == reference || std::find(tried.begin(), tried.end(), i) != tried.end()) continue;
    double weights = kPriorWeight, sum = kPriorWeight * mean;
    for (const Measured& m : measured) {
      double like = likeness(at(i), at(m.index));
      weights += like * like;
      sum += like * like * error(m);
    }
    bool far = narrow && fastest != measured.end() && differing_knobs(at(i), at(fastest->index)) > 2;
    open.emplace_back(at(i).prediction.microseconds * std::exp(sum / weights) * (far ? kFarPenalty : 1), i);
  }
  std::vector<int> next;
  while (!open.empty() && static_cast<int>(next.size()) < most) {
    auto best = std::min_element(open.begin(), open.end());
    int taken = best->second;
    next.push_back(taken);
    open.erase(best);
    for (auto& [cost, i] : open) cost *= 1 + kTwinPenalty * std::pow(likeness(at(i), at(taken)), 2);
  }
  return next;
}

}  // namespace tilewright::tuner
