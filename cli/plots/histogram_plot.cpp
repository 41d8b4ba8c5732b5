// SPDX-License-Identifier: Apache-2.0
#include "cli/plots/histogram_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/plots/svg.h"

namespace tilewright::cli {
namespace {

constexpr double kPlotWidth = 960, kPlotHeight = 420, kFirstX = 70, kLastX = 936, kFirstY = 78, kLastY = 370;
constexpr int kColumns = 240;

constexpr const char* kHistogramStyle =
    "text { font: 12px sans-serif; fill: #1f2328 } .title { font-size: 15px } .back { fill: #ffffff } "
    ".grid { stroke: #d0d7de } .axis { stroke: #59636e; fill: none } .bar { fill: #0969da } .clipped { fill: #bf3989 } "
    ".clip { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 6 3 } "
    "@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .back { fill: #0d1117 } .grid { stroke: #30363d } "
    ".axis { stroke: #9198a1 } .bar { fill: #4493f8 } .clipped { fill: #db61a2 } .clip { stroke: #e6edf3 } }";

std::string pixels(double value) { return fmt::format("{:.1f}", value); }

struct HistogramColumns {
  double least, most;
  std::vector<double> inside, outside;  // of the clip

  explicit HistogramColumns(const HistogramPlot& plot) : inside(kColumns), outside(kColumns) {
    const Observation& o = plot.seen;
    const double w = std::ldexp(1.0, o.exponent);
    least = std::min(o.min, plot.clip.min);
    most = std::max(o.max, plot.clip.max);
    if (least == most) least -= w, most += w;
    const auto add = [&](double middle, std::uint64_t count) {
      if (count == 0) return;
      const bool kept = middle >= plot.clip.min - w / 2 && middle <= plot.clip.max + w / 2;
      const double place = (middle - least) / (most - least) * kColumns;
      (kept ? inside : outside)[static_cast<std::size_t>(std::clamp(place, 0.0, kColumns - 1.0))] +=
          static_cast<double>(count);
    };
    for (std::size_t i = 0; i < o.negative.size(); ++i) add(-(static_cast<double>(i) + 0.5) * w, o.negative[i]);
    for (std::size_t i = 0; i < o.positive.size(); ++i) add((static_cast<double>(i) + 0.5) * w, o.positive[i]);
  }
  double largest() const {
    double most_counts = 1;
    for (int i = 0; i < kColumns; ++i) {
      const auto at = static_cast<std::size_t>(i);
      most_counts = std::max(most_counts, inside[at] + outside[at]);
    }
    return most_counts;
  }
  double x(double value) const { return kFirstX + (value - least) / (most - least) * (kLastX - kFirstX); }
};

void write_text(Svg& svg, double x, double y, const std::string& text, const char* anchor) {
  svg.element("text", {{"x", pixels(x)}, {"y", pixels(y)}, {"text-anchor", anchor}}, text);
}

}  // namespace

std::string draw(const HistogramPlot& plot) {
  const HistogramColumns columns(plot);
  // 1 stands a little above the axis, so that a lone value is seen.
  const double decades = std::log10(columns.largest()) + 0.3;
  const auto y = [&](double count) {
    return kLastY - (count < 1 ? 0 : (std::log10(count) + 0.3) / decades * (kLastY - kFirstY));
  };
  Svg svg;
  svg.open("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                   {"viewBox", fmt::format("0 0 {:g} {:g}", kPlotWidth, kPlotHeight)},
                   {"role", "img"},
                   {"aria-labelledby", "title description"}});
  svg.element("title", {{"id", "title"}}, plot.title);
  svg.element("desc", {{"id", "description"}},
              fmt::format("Histogram of {} values from {:.6g} to {:.6g}; kept are those from {:.6g} to {:.6g}.",
                          plot.seen.count, plot.seen.min, plot.seen.max, plot.clip.min, plot.clip.max));
  svg.element("style", {}, kHistogramStyle);
  svg.element("rect", {{"class", "back"}, {"width", pixels(kPlotWidth)}, {"height", pixels(kPlotHeight)}});
  svg.element("text", {{"class", "title"}, {"x", pixels(kFirstX)}, {"y", "24"}}, plot.title);
  svg.element("text", {{"x", pixels(kFirstX)}, {"y", "44"}}, plot.subtitle);

  for (double count = 1; count <= columns.largest(); count *= 10) {
    const std::string at = pixels(y(count));
    svg.element("line", {{"class", "grid"}, {"x1", pixels(kFirstX)}, {"x2", pixels(kLastX)}, {"y1", at}, {"y2", at}});
    write_text(svg, kFirstX - 8, y(count) + 4, fmt::format("{:g}", count), "end");
  }
  for (int i = 0; i <= 8; ++i) {
    const double value = columns.least + (columns.most - columns.least) * i / 8;
    write_text(svg, columns.x(value), kLastY + 18, fmt::format("{:.4g}", value), "middle");
  }
  const double step = (kLastX - kFirstX) / kColumns;
  const auto bar = [&](std::size_t i, double from, double to, const char* style) {
    if (to <= from) return;
    svg.element("rect", {{"class", style},
                         {"x", fmt::format("{:.2f}", kFirstX + static_cast<double>(i) * step)},
                         {"y", pixels(y(to))},
                         {"width", fmt::format("{:.2f}", step)},
                         {"height", fmt::format("{:.2f}", y(from) - y(to))}});
  };
  for (std::size_t i = 0; i < kColumns; ++i) {
    bar(i, 0, columns.inside[i], "bar");
    bar(i, columns.inside[i], columns.inside[i] + columns.outside[i], "bar clipped");
  }
  svg.element("path",
              {{"class", "axis"}, {"d", fmt::format("M{0:g} {1:g}V{2:g}H{3:g}", kFirstX, kFirstY, kLastY, kLastX)}});
  write_text(svg, (kFirstX + kLastX) / 2, kLastY + 38, "value", "middle");
  write_text(svg, kFirstX - 8, kFirstY - 12, "count", "end");
  for (const double end : {plot.clip.min, plot.clip.max}) {
    const std::string x = pixels(columns.x(end));
    svg.element("line", {{"class", "clip"}, {"x1", x}, {"x2", x}, {"y1", pixels(kFirstY)}, {"y2", pixels(kLastY)}});
    // On the side of the line that is inside the picture.
    const bool left = columns.x(end) < (kFirstX + kLastX) / 2;
    write_text(svg, columns.x(end) + (left ? 4 : -4), kFirstY - 6, fmt::format("{:.6g}", end), left ? "start" : "end");
  }
  svg.close();
  return svg.text();
}

}  // namespace tilewright::cli
