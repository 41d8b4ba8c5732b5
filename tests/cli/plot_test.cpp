// SPDX-License-Identifier: Apache-2.0
// The picture that plot draws, without a GPU. gpu_test.cpp runs the command.
#include <regex>
#include <set>

#include "cli/plots/rows_plot.h"
#include "cli/plots/svg.h"
#include "cli/xml.h"

using namespace tilewright;
using namespace tilewright::cli;

namespace {

Candidate candidate(const std::string& text) { return Candidate::parse(text); }

RowRange range(std::int64_t first, std::int64_t last, double us, const std::string& kernel, bool measured = true) {
  return {first, last, candidate(kernel), us, measured};
}

RowsPlot example() {
  RowsPlot plot;
  plot.title = "gemm <x> & \"w\"";
  plot.device = "A device, sm_90a";
  plot.rows_name = "m";
  plot.ranges = {range(1, 8, 30, "gemv unit=32 lanes=4"), range(9, 64, 34, "mma block_m=16 stages=3"),
                 range(65, 128, 40, "mma block_m=32 stages=3"), range(129, 4096, 800, "mma block_m=16 stages=3"),
                 range(4097, 0, 1500, "mma block_m=64 stages=3", false)};
  return plot;
}

std::vector<double> numbers(const std::string& text) {
  std::vector<double> found;
  const std::regex number("-?[0-9]+(\\.[0-9]+)?");
  for (std::sregex_iterator i(text.begin(), text.end(), number), end; i != end; ++i)
    found.push_back(std::stod(i->str()));
  return found;
}

}  // namespace

TEST_CASE("plot: a segment for each range, in a color for each kernel") {
  const std::string svg = draw(example());
  const xml::Document document = xml::parse(svg);
  const auto segments = document.all("polyline");
  REQUIRE(segments.size() == 5);
  std::vector<std::string> colors;
  for (const auto& group : document.all("g"))
    if (group.attributes.count("stroke")) colors.push_back(group.attributes.at("stroke"));
  REQUIRE(colors.size() == 5);
  CHECK(colors[1] == colors[3]);  // one kernel
  CHECK(std::set<std::string>(colors.begin(), colors.end()).size() == 4);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK((segments[i].attributes.at("class") == "segment predicted") == (i == 4));
    const std::vector<double> points = numbers(segments[i].attributes.at("points"));
    REQUIRE(points.size() == 4);
    CHECK(points[2] > points[0]);   // to more rows
    CHECK(points[3] <= points[1]);  // and upwards, as these times grow
    if (i > 0) CHECK(numbers(segments[i - 1].attributes.at("points"))[2] == points[0]);  // without a gap
  }
  // The axes are logarithmic: 8 of 8192 rows are three of thirteen octaves.
  const double left = numbers(segments[0].attributes.at("points"))[0];
  const double right = numbers(segments[4].attributes.at("points"))[2];
  CHECK(std::abs((numbers(segments[0].attributes.at("points"))[2] - left) / (right - left) - 3.0 / 13) < 1e-3);
}

TEST_CASE("plot: predicted times are hollow, measured ones filled") {
  std::vector<std::string> fills;
  for (const auto& circle : xml::parse(draw(example())).all("circle"))
    if (circle.attributes.at("class") == "expected") fills.push_back(circle.attributes.at("fill"));
  REQUIRE(fills.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) CHECK((fills[i] == "none") == (i == 4));
}

TEST_CASE("plot: the legend names each kernel once, by what tells it apart") {
  std::vector<std::string> names;
  for (const auto& text : xml::parse(draw(example())).all("text"))
    if (text.attributes.count("class") && text.attributes.at("class") == "legend") names.push_back(text.text);
  REQUIRE(names.size() == 6);  // two marks, then the kernels
  CHECK(std::vector<std::string>(names.begin() + 2, names.end()) ==
        std::vector<std::string>{"gemv", "mma block_m=16", "mma block_m=32", "mma block_m=64"});

  const auto names_of = [](std::vector<std::string> texts) {
    std::vector<Candidate> candidates;
    for (const std::string& text : texts) candidates.push_back(candidate(text));
    return short_names(candidates);
  };
  CHECK(names_of({"a p=1 q=1 r=1", "a p=1 q=2 r=1", "a p=1 q=2 r=2"}) ==
        std::vector<std::string>{"a q=1 r=1", "a q=2 r=1", "a q=2 r=2"});
  CHECK(names_of({"a p=1", "a p=1 schedule=1", "b p=1"}) == std::vector<std::string>{"a", "a schedule=1", "b"});
  CHECK(names_of({}).empty());
}

TEST_CASE("plot: a roofline and the points of a benchmark are drawn and explained") {
  RowsPlot plot = example();
  const std::string without = draw(plot);
  CHECK(without.find("roofline:") == std::string::npos);
  CHECK(without.find("rivals") == std::string::npos);
  plot.roofline = {{1, 20, "memory"}, {500, 20, "memory"}, {8192, 700, "matrix units"}};
  plot.roofline_name = "4.65 TB/s";
  plot.measured = {{4, 31, "gemv unit=32"}, {100, 39, "mma"}};
  plot.rivals = {{4, 33, "cuBLASLt <bf16>"}};
  const xml::Document document = xml::parse(draw(plot));
  int rooflines = 0, measured = 0, rivals = 0;
  for (const auto& e : document.elements) {
    const auto style = e.attributes.count("class") ? e.attributes.at("class") : "";
    rooflines += e.name == "polyline" && style == "roofline";
    measured += style == "bench";
    rivals += style == "rival";
  }
  CHECK(rooflines == 1);
  CHECK(measured == 3);  // one is the legend's
  CHECK(rivals == 2);
  bool rival_named = false, rates_named = false;
  for (const auto& e : document.elements) {
    rival_named |= e.name == "title" && e.text == "m=4: 33.00 us, cuBLASLt &lt;bf16&gt;";
    rates_named |= e.name == "text" && e.text == "roofline: 4.65 TB/s";
  }
  CHECK(rival_named);
  CHECK(rates_named);
}

TEST_CASE("plot: has a title and a description, escapes text, and follows the reader's color scheme") {
  const std::string svg = draw(example());
  const xml::Document document = xml::parse(svg);
  REQUIRE(document.elements.size() > 2);
  CHECK(document.elements[0].name == "svg");
  CHECK(document.elements[0].attributes.at("role") == "img");
  CHECK(document.elements[0].attributes.at("aria-labelledby") == "title description");
  CHECK(document.elements[1].name == "title");
  CHECK(document.elements[1].text == "gemm &lt;x&gt; &amp; &quot;w&quot;");
  CHECK(document.elements[2].text.find("5 ranges of rows, served by 4 kernels") != std::string::npos);
  CHECK(svg.find("prefers-color-scheme: dark") != std::string::npos);
  CHECK(Svg::escaped("a<b>&\"\x1b") == "a&lt;b&gt;&amp;&quot;\\x1b");
}

TEST_CASE("plot: every time is within the axes") {
  for (const double scale : {1e-2, 1.0, 3.7, 1e5}) {
    RowsPlot plot = example();
    for (RowRange& r : plot.ranges) r.microseconds *= scale;
    plot.ranges.resize(scale == 3.7 ? 1 : 5);
    std::vector<double> ticks;
    for (const auto& line : xml::parse(draw(plot)).all("line"))
      if (line.attributes.at("y1") == line.attributes.at("y2")) ticks.push_back(std::stod(line.attributes.at("y1")));
    REQUIRE(ticks.size() >= 2);
    for (const auto& segment : xml::parse(draw(plot)).all("polyline")) {
      const std::vector<double> points = numbers(segment.attributes.at("points"));
      for (const double y : {points[1], points[3]}) {
        CHECK(y < ticks.front());
        CHECK(y > ticks.back());
      }
    }
  }
}
