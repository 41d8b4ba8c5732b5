// SPDX-License-Identifier: Apache-2.0
#include "bench/conv/conv_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tilewright::bench {
namespace {

bool at_most(const ConvGoal& goal) { return goal.measure == ConvMeasure::larger; }
bool reaches(double value, const ConvGoal& goal) { return at_most(goal) ? value <= goal.value : value >= goal.value; }
std::string show(double value, ConvMeasure measure) {
  if (value == 0) return "";
  return measure == ConvMeasure::copy_rate || measure == ConvMeasure::fma_rate ? fmt::format("{:.0f} %", 100 * value)
                                                                               : fmt::format("{:.3f}x", value);
}
std::string asked(const ConvGoal& goal) {
  if (goal.value == 0) return "";
  switch (goal.measure) {
    case ConvMeasure::copy_rate: return fmt::format(">= {:.0f} % of a copy", 100 * goal.value);
    case ConvMeasure::fma_rate: return fmt::format(">= {:.0f} % of the FMA rate", 100 * goal.value);
    case ConvMeasure::larger: return fmt::format("<= {:.2f}x a larger size's time", goal.value);
    case ConvMeasure::ratio: break;
  }
  return fmt::format(">= {:.2f}x", goal.value);
}

}  // namespace

// Where the value depends on other rows, it is judged again once they are measured.
void ConvReport::judge(ConvResult& r) const {
  switch (r.job.goal.measure) {
    case ConvMeasure::ratio: r.value = r.ratio; break;
    case ConvMeasure::copy_rate: r.value = r.tbps / copy_tbps_; break;
    case ConvMeasure::fma_rate: r.value = r.tflops / fma_tflops_; break;
    case ConvMeasure::larger: r.value = against_larger(r); break;
  }
  if (r.job.goal.value > 0 && r.value > 0) r.mark = reaches(r.value, r.job.goal) ? "pass" : "SHORT";
}

double ConvReport::against_larger(const ConvResult& r) const {
  double least = 0;
  for (const ConvResult& w : results_)
    if (!r.job.whole.empty() && w.job.label == r.job.label && w.job.whole == r.job.whole && w.ops > r.ops &&
        (least == 0 || w.us < least))
      least = w.us;
  return least > 0 ? r.us / least : 0;
}

void ConvReport::keep(ConvResult r) {
  fmt::print("{:5} {:18} {:>4}: {}\n", r.mark, r.job.label, r.job.layer,
             r.us > 0 ? fmt::format("{:.1f} us {:.0f} TF, rival {:.1f} {} {} {} {} {}", r.us, r.tflops, r.rival_us,
                                    show(r.ratio, ConvMeasure::ratio), show(r.value, r.job.goal.measure),
                                    asked(r.job.goal), r.rival, r.note)
                      : r.note);
  results_.push_back(std::move(r));
}

void ConvReport::add(ConvResult r) {
  judge(r);
  const bool wants_rival = !r.job.rivals.empty() || !r.job.base.empty();
  if (r.rival_us == 0 && wants_rival && r.note.empty()) r.note = "no rival";
  keep(std::move(r));
}

void ConvReport::missing(const ConvJob& job, const std::string& why) {
  ConvResult r;
  r.job = job, r.note = why;
  if (job.goal.value > 0 || !job.mean.empty()) r.mark = "SHORT";
  keep(std::move(r));
}

Json ConvReport::finish() {
  for (ConvResult& r : results_)
    if (r.us > 0) judge(r);
  Table table({"row", "layer", "", "us", "TF", "TB/s", "rival us", "rival", "ratio", "in a row", "of a copy", "value",
               "asked", "", "choice"});
  Json json;
  json["copy_tbps"] = copy_tbps_;
  json["fma_tflops"] = fma_tflops_;
  json["rows"] = Json::array();
  for (const ConvResult& r : results_) {
    const std::string number = r.us > 0 ? fmt::format("{:.1f}", r.us) : "-";
    table.row({r.job.label, r.job.layer, r.job.title, number, r.us > 0 ? fmt::format("{:.0f}", r.tflops) : "",
               r.us > 0 ? fmt::format("{:.2f}", r.tbps) : "", r.rival_us > 0 ? fmt::format("{:.1f}", r.rival_us) : "",
               r.rival.substr(0, 40), show(r.ratio, ConvMeasure::ratio),
               r.in_a_row_us > 0 ? show(r.rival_in_a_row_us / r.in_a_row_us, ConvMeasure::ratio) : "",
               show(r.tbps / copy_tbps_, ConvMeasure::copy_rate), show(r.value, r.job.goal.measure), asked(r.job.goal),
               r.mark, r.us > 0 ? r.choice : r.note.substr(0, 100)});
    json["rows"].push_back({{"label", r.job.label},
                            {"layer", r.job.layer},
                            {"title", r.job.title},
                            {"problem", r.job.problem},
                            {"us", r.us},
                            {"in_a_row_us", r.in_a_row_us},
                            {"tflops", r.tflops},
                            {"tbps", r.tbps},
                            {"rival", r.rival},
                            {"rival_us", r.rival_us},
                            {"rival_in_a_row_us", r.rival_in_a_row_us},
                            {"ratio", r.ratio},
                            {"of_copy", r.tbps / copy_tbps_},
                            {"calls", r.job.calls},
                            {"passes", r.passes},
                            {"passes_us", r.passes_us},
                            {"group", r.job.goal.group},
                            {"value", r.value},
                            {"target", r.job.goal.value},
                            {"target_text", asked(r.job.goal)},
                            {"at_most", at_most(r.job.goal)},
                            {"mark", r.mark},
                            {"note", r.note},
                            {"error", r.error},
                            {"rivals", r.rivals},
                            {"rival_notes", r.rival_notes},
                            {"choice", r.choice},
                            {"tune_seconds", r.tune_seconds},
                            {"outcomes", r.outcomes}});
  }
  fmt::print("\n{}\n", table.text());
  json["summary"] = summary();
  return json;
}

// A line of the summary, and what it is made from.
struct ConvReport::Group {
  std::string name;
  ConvGoal goal;
  double worst = 0, value = 0;  // of all rows together: their mean, geometric, or of times weighted by calls
  int rows = 0, judged = 0, reached = 0, without = 0, missing = 0;
  bool together = false;  // the value is asked for, not each row's
};

// One line for each group: of its rows, of their geometric mean, or of their times weighted by calls.
Json ConvReport::summary() const {
  std::vector<std::string> groups, means, weighted;
  const auto once = [](std::vector<std::string>& list, const std::string& name) {
    if (!name.empty() && std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  };
  for (const ConvResult& r : results_) {
    if (r.job.goal.value > 0) once(groups, r.job.goal.group);
    once(means, r.job.mean);
    once(weighted, r.job.weighted);
  }
  std::vector<Group> lines;
  for (const std::string& name : groups) lines.push_back(rows_of(name));
  for (const std::string& name : means) lines.push_back(mean_of(name));
  for (const std::string& name : weighted) lines.push_back(calls_of(name));
  Table table({"asked for", "worst", "mean", "target", "", "rows", "reached", "not judged", "without a kernel"});
  Json json = Json::array();
  for (const Group& g : lines) {
    // A mean of some of its rows is no mean of all.
    const std::string mark = g.without                                                         ? "SHORT"
                             : g.judged < g.rows || g.missing                                  ? "-"
                             : (g.together ? reaches(g.value, g.goal) : g.reached == g.judged) ? "pass"
                                                                                               : "SHORT";
    const int not_judged = g.rows - g.judged - g.without;
    table.row({g.name, show(g.worst, g.goal.measure), show(g.value, g.goal.measure), asked(g.goal), mark,
               fmt::format("{}", g.rows), g.together ? "" : fmt::format("{}", g.reached), fmt::format("{}", not_judged),
               fmt::format("{}", g.without)});
    json.push_back({{"group", g.name},
                    {"worst", g.worst},
                    {"mean", g.value},
                    {"target", g.goal.value},
                    {"rows", g.rows},
                    {"judged", g.judged},
                    {"reached", g.reached},
                    {"without_kernel", g.without},
                    {"missing_calls", g.missing},
                    {"mark", mark}});
  }
  fmt::print("{}", table.text());
  return json;
}

bool ConvReport::count(Group& g, const ConvResult& r, double value) {
  ++g.rows, g.without += r.us == 0;
  if (value == 0) return false;
  ++g.judged, g.reached += reaches(value, g.goal);
  const bool worse = at_most(g.goal) ? value > g.worst : value < g.worst;
  if (g.judged == 1 || worse) g.worst = value;
  return true;
}

ConvReport::Group ConvReport::rows_of(const std::string& name) const {
  Group g{name, {}};
  double logarithms = 0;
  for (const ConvResult& r : results_) {
    if (r.job.goal.value == 0 || r.job.goal.group != name) continue;
    g.goal = r.job.goal;
    if (count(g, r, r.value)) logarithms += std::log(r.value);
  }
  if (g.judged) g.value = std::exp(logarithms / g.judged);
  return g;
}

ConvReport::Group ConvReport::mean_of(const std::string& name) const {
  Group g{name + ", geometric mean", {ConvMeasure::ratio, mean_asked(name), name}};
  g.together = true;
  double logarithms = 0;
  for (const ConvResult& r : results_)
    if (r.job.mean == name && count(g, r, r.ratio)) logarithms += std::log(r.ratio);
  if (g.judged) g.value = std::exp(logarithms / g.judged);
  return g;
}

ConvReport::Group ConvReport::calls_of(const std::string& name) const {
  const ConvCalls all = calls_asked(name);
  Group g{name, {ConvMeasure::ratio, all.asked, name}};
  g.together = true, g.missing = all.calls;
  double ours = 0, rival = 0;
  for (const ConvResult& r : results_) {
    if (r.job.weighted != name) continue;
    g.missing -= r.job.calls;
    if (count(g, r, r.ratio)) ours += r.job.calls * r.us, rival += r.job.calls * r.rival_us;
  }
  if (ours > 0) g.value = rival / ours;
  return g;
}

}  // namespace tilewright::bench
