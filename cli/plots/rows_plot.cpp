// SPDX-License-Identifier: Apache-2.0
#include "cli/plots/rows_plot.h"

#include <fmt/format.h>
#include <tilewright/problem.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cli/command.h"
#include "cli/plots/svg.h"

namespace tilewright::cli {
namespace {

constexpr double kWidth = 960, kLeft = 70, kRight = 936, kTop = 70, kBottom = 490;
constexpr double kLegendTop = 556, kLegendLine = 18;
constexpr double kCharacter = 6.8;  // width of one in the legend, about

// Classes instead of attributes, because only a style sheet can ask for the reader's colour scheme.
constexpr const char* kStyle =
    "text { font: 12px sans-serif; fill: #1f2328 } .title { font-size: 15px } .legend { font: 11px monospace } "
    ".back { fill: #ffffff } .grid { stroke: #d0d7de } .axis { stroke: #59636e; fill: none } "
    ".roofline { stroke: #1f2328; fill: none; stroke-width: 1.5; stroke-dasharray: 6 3 } "
    ".rival { stroke: #1f2328; fill: none; stroke-width: 1.3 } .segment { fill: none; stroke-width: 2.2 } "
    ".predicted { stroke-dasharray: 3 3 } .expected { stroke-width: 1.5 } .bench { stroke: #1f2328; stroke-width: 0.8 "
    "} "
    "@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .back { fill: #0d1117 } .grid { stroke: #30363d } "
    ".axis { stroke: #9198a1 } .roofline, .rival, .bench { stroke: #e6edf3 } }";

std::string number(double value) { return fmt::format("{:.1f}", value); }

// Time's axis, from a tick to a tick. Ticks are 1, 2 and 5 times a power of ten.
class TimeAxis {
 public:
  explicit TimeAxis(const RowsPlot& plot) {
    double least = plot.ranges.front().microseconds, most = least;
    const auto include = [&](double us) { least = std::min(least, us), most = std::max(most, us); };
    for (const RowRange& r : plot.ranges) include(r.microseconds);
    for (const auto* points : {&plot.roofline, &plot.measured, &plot.rivals})
      for (const TimedRows& p : *points) include(p.microseconds);
    for (int decade = -3; decade <= 9; ++decade)
      for (const int step : {1, 2, 5}) ticks_.push_back(step * std::pow(10.0, decade));
    const auto first = std::upper_bound(ticks_.begin() + 1, ticks_.end() - 2, least);
    const auto last = std::lower_bound(first + 1, ticks_.end() - 1, most);
    ticks_ = std::vector<double>(first - 1, last + 1);
  }
  const std::vector<double>& ticks() const { return ticks_; }
  double at(double us) const {
    const double share = std::log(us / ticks_.front()) / std::log(ticks_.back() / ticks_.front());
    return kBottom - std::clamp(share, 0.0, 1.0) * (kBottom - kTop);
  }

 private:
  std::vector<double> ticks_;
};

double at_rows(std::int64_t rows) {
  return kLeft + std::log2(double(rows)) / std::log2(double(kMostStepRows)) * (kRight - kLeft);
}

struct Artist {
  const RowsPlot& plot;
  TimeAxis time{plot};
  Svg svg = {};
  double legend_y = kLegendTop;

  std::string place(std::int64_t rows, double us) const { return number(at_rows(rows)) + "," + number(time.at(us)); }
  static std::int64_t last_of(const RowRange& r) { return r.last ? r.last : kMostStepRows; }

  std::string title_of(const TimedRows& p) const {
    return fmt::format("{}={}: {}, {}", plot.rows_name, p.rows, microseconds(p.microseconds), p.name);
  }

  void label(double x, double y, const std::string& text, const char* anchor, const char* style = "label") {
    svg.element("text", {{"x", number(x)}, {"y", number(y)}, {"class", style}, {"text-anchor", anchor}}, text);
  }

  void axes() {
    for (std::int64_t rows = 1; rows <= kMostStepRows; rows *= 2) {
      const std::string x = number(at_rows(rows));
      svg.element("line", {{"class", "grid"}, {"x1", x}, {"x2", x}, {"y1", number(kTop)}, {"y2", number(kBottom)}});
      label(at_rows(rows), kBottom + 18, std::to_string(rows), "middle");
    }
    for (const double us : time.ticks()) {
      const std::string y = number(time.at(us));
      svg.element("line", {{"class", "grid"}, {"x1", number(kLeft)}, {"x2", number(kRight)}, {"y1", y}, {"y2", y}});
      label(kLeft - 8, time.at(us) + 4, fmt::format("{:g}", us), "end");
    }
    svg.element("path", {{"class", "axis"}, {"d", fmt::format("M{0} {1}V{2}H{3}", kLeft, kTop, kBottom, kRight)}});
    label((kLeft + kRight) / 2, kBottom + 38, "rows (" + plot.rows_name + ")", "middle");
    label(kLeft - 8, kTop - 12, "µs", "end");
  }

  void roofline() {
    if (plot.roofline.empty()) return;
    std::string points;
    for (const TimedRows& p : plot.roofline) points += (points.empty() ? "" : " ") + place(p.rows, p.microseconds);
    svg.element("polyline", {{"class", "roofline"}, {"points", points}});
  }

  // A line to the last row of a range, where its time is known, from that of the range before.
  void segment(std::size_t i, const std::string& color) {
    const RowRange& r = plot.ranges[i];
    const std::int64_t last = last_of(r);
    const std::string from =
        i ? place(last_of(plot.ranges[i - 1]), plot.ranges[i - 1].microseconds) : place(r.first, r.microseconds);
    svg.open("g", {{"stroke", color}});
    svg.element("title", {},
                fmt::format("{} {}: {}{}, {}", plot.rows_name, rows_text(r), microseconds(r.microseconds),
                            r.measured ? "" : " (predicted)", r.candidate.text()));
    svg.element("polyline", {{"class", r.measured ? "segment" : "segment predicted"},
                             {"points", from + " " + place(last, r.microseconds)}});
    svg.element("circle", {{"class", "expected"},
                           {"cx", number(at_rows(last))},
                           {"cy", number(time.at(r.microseconds))},
                           {"r", "2.5"},
                           {"fill", r.measured ? color : "none"}});
    svg.close();
  }

  void bench_point(const TimedRows& p) {
    svg.open("circle", {{"class", "bench"},
                        {"cx", number(at_rows(p.rows))},
                        {"cy", number(time.at(p.microseconds))},
                        {"r", "4"},
                        {"fill", "none"}});
    svg.element("title", {}, title_of(p));
    svg.close();
  }

  static std::string cross(double x, double y) { return fmt::format("M{:.1f} {:.1f}l8 8m-8 0l8 -8", x - 4, y - 4); }
  void rival_point(const TimedRows& p) {
    svg.open("path", {{"class", "rival"}, {"d", cross(at_rows(p.rows), time.at(p.microseconds))}});
    svg.element("title", {}, title_of(p));
    svg.close();
  }

  // What the marks mean.
  void marks() {
    const double x = kLeft;
    const auto line = [&](const std::string& text) {
      label(x + 36, legend_y + 4, text, "start", "legend");
      legend_y += kLegendLine;
    };
    const auto sample = [&](const char* style) {
      svg.element("path", {{"class", style}, {"d", fmt::format("M{:.1f} {:.1f}h28", x, legend_y)}});
    };
    if (!plot.roofline.empty()) sample("roofline"), line("roofline: " + plot.roofline_name);
    if (!plot.measured.empty()) {
      svg.element("circle",
                  {{"class", "bench"}, {"cx", number(x + 14)}, {"cy", number(legend_y)}, {"r", "4"}, {"fill", "none"}});
      line("measured by the benchmark");
    }
    if (!plot.rivals.empty()) {
      svg.element("path", {{"class", "rival"}, {"d", cross(x + 14, legend_y)}});
      line("rivals, measured by the benchmark");
    }
    sample("axis segment"), line("expected at the last row of a range, from measurements of this kernel");
    sample("axis segment predicted"), line("predicted: this kernel was not measured for the problem");
    legend_y += kLegendLine / 2;
  }

  void kernels(const std::vector<std::string>& names, const std::vector<Candidate>& candidates,
               const std::vector<std::string>& colors) {
    std::size_t longest = 0;
    for (const std::string& name : names) longest = std::max(longest, name.size());
    const double column = 50 + kCharacter * static_cast<double>(longest);
    const auto columns = static_cast<std::size_t>(std::max(1.0, std::floor((kRight - kLeft) / column)));
    const std::size_t lines = (names.size() + columns - 1) / columns;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const double x = kLeft + column * static_cast<double>(i / lines);
      const double y = legend_y + kLegendLine * static_cast<double>(i % lines);
      svg.open("g", {{"class", "kernel"}});
      svg.element("title", {}, candidates[i].text());
      svg.element("path", {{"class", "segment"}, {"stroke", colors[i]}, {"d", fmt::format("M{:.1f} {:.1f}h28", x, y)}});
      label(x + 36, y + 4, names[i], "start", "legend");
      svg.close();
    }
    legend_y += kLegendLine * static_cast<double>(lines);
  }
};

// Hues a golden angle apart: however many there are, neighbours differ. Neither light nor dark, so that both
// backgrounds show them.
std::string color(std::size_t index) {
  return fmt::format("hsl({:.0f}, 70%, 48%)", std::fmod(210 + 137.508 * double(index), 360.0));
}

}  // namespace

std::vector<std::string> short_names(const std::vector<Candidate>& candidates) {
  std::map<std::string, std::vector<std::size_t>> families;
  for (std::size_t i = 0; i < candidates.size(); ++i) families[candidates[i].family].push_back(i);
  const auto value = [&](std::size_t i, const std::string& knob) {
    for (const auto& [name, v] : candidates[i].knobs)
      if (name == knob) return fmt::format(" {}={}", name, v);
    return std::string();
  };
  std::vector<std::string> names;
  for (const Candidate& c : candidates) names.push_back(c.family);
  for (const auto& [family, members] : families) {
    const auto distinct = [&, &list = members](auto&& text) {
      std::set<std::string> found;
      for (const std::size_t i : list) found.insert(text(i));
      return found.size();
    };
    std::vector<std::string> knobs;
    for (const std::size_t i : members)
      for (const auto& [knob, v] : candidates[i].knobs)
        if (std::find(knobs.begin(), knobs.end(), knob) == knobs.end()) knobs.push_back(knob);
    for (const std::string& knob : knobs) {
      if (distinct([&](std::size_t i) { return names[i]; }) == members.size()) break;
      if (distinct([&](std::size_t i) { return value(i, knob); }) == 1) continue;
      for (const std::size_t i : members) names[i] += value(i, knob);
    }
  }
  return names;
}

std::string draw(const RowsPlot& plot) {
  std::vector<Candidate> candidates;  // in the order in which they first serve
  std::vector<std::size_t> served;    // by range: which candidate
  for (const RowRange& r : plot.ranges) {
    auto found = std::find(candidates.begin(), candidates.end(), r.candidate);
    if (found == candidates.end()) found = candidates.insert(candidates.end(), r.candidate);
    served.push_back(static_cast<std::size_t>(found - candidates.begin()));
  }
  std::vector<std::string> colors;
  for (std::size_t i = 0; i < candidates.size(); ++i) colors.push_back(color(i));

  Artist artist{plot};
  artist.axes();
  artist.roofline();
  for (std::size_t i = 0; i < plot.ranges.size(); ++i) artist.segment(i, colors[served[i]]);
  for (const TimedRows& p : plot.measured) artist.bench_point(p);
  for (const TimedRows& p : plot.rivals) artist.rival_point(p);
  artist.marks();
  artist.kernels(short_names(candidates), candidates, colors);

  const std::string height = number(artist.legend_y + 12);
  Svg svg;
  svg.open("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                   {"viewBox", "0 0 " + number(kWidth) + " " + height},
                   {"role", "img"},
                   {"aria-labelledby", "title description"}});
  svg.element("title", {{"id", "title"}}, plot.title);
  svg.element("desc", {{"id", "description"}},
              fmt::format("Time over {} from 1 to {} on {}: {} ranges of rows, served by {} kernels.", plot.rows_name,
                          kMostStepRows, plot.device, plot.ranges.size(), candidates.size()));
  svg.element("style", {}, kStyle);
  svg.element("rect", {{"class", "back"}, {"width", number(kWidth)}, {"height", height}});
  svg.element("text", {{"class", "title"}, {"x", number(kLeft)}, {"y", "24"}}, plot.title);
  svg.element("text", {{"x", number(kLeft)}, {"y", "44"}}, plot.device);
  svg.append(artist.svg);
  svg.close();
  return svg.text();
}

}  // namespace tilewright::cli
