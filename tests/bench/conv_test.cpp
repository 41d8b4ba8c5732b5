// SPDX-License-Identifier: Apache-2.0
// What `bench conv` needs no device for: its jobs, the outputs that results are compared with, and cuDNN's shapes.
#include <fmt/format.h>
#include <tilewright/tilewright.h>

#include <cmath>
#include <set>

#include "bench/conv/conv_check.h"
#include "bench/conv/conv_jobs.h"
#include "bench/rivals/cudnn_shapes.h"
#include "support/catch.h"

using namespace tilewright;
using namespace tilewright::bench;

namespace {

Conv conv_of(const std::string& text) { return *Problem::parse("conv " + text).as<Conv>(); }

// Of expected_outputs() against the operation's own computation on the host.
double error_on_host(const std::string& text) {
  const Problem problem = Problem::parse("conv " + text);
  const Conv& conv = *problem.as<Conv>();
  Task task;
  problem.operation().describe(problem, task);
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::span<std::byte>> buffers;
  std::size_t y = 0;
  for (const Buffer& b : task.buffers) {
    std::vector<std::byte>& bytes = memory.emplace_back(b.bytes);
    if (b.fill) b.fill(bytes, 1);
    if (b.output) y = memory.size() - 1;
  }
  for (std::vector<std::byte>& bytes : memory) buffers.emplace_back(bytes);
  problem.operation().run_on_host(problem, task, buffers);
  const auto element = static_cast<std::size_t>(conv.y.stream_bytes(0, 1, 1));
  return worst_error(expected_outputs(conv, task, 16), [&](std::size_t i) {
    float value = 0;
    conv.y.info().decode({memory[y].data() + i * element, nullptr, nullptr}, 1, 1, &value);
    return static_cast<double>(value);
  });
}

std::vector<std::int64_t> list(std::initializer_list<std::int64_t> values) { return values; }

}  // namespace

TEST_CASE("bench conv: expected outputs are those of the operation on the host", "[bench]") {
  for (const char* text :
       {"x=f32 w=f32 y=f32 n=2 c=16 in=4x9x11 k=24 kernel=3 pad=0x1x1",
        "x=bf16 w=bf16 y=f32 n=1 c=8 in=40 k=5 kernel=3 pad=1",
        "x=f16 w=f16 y=f32 n=3 c=8 in=12x13 k=10 kernel=3 stride=2 pad=0:1",
        "x=bf16 w=bf16 y=f32 n=2 c=12 in=5x6x7 k=9 kernel=3x1x2 dilation=2x1x3 pad=2 groups=3",
        "x=bf16 w=bf16 y=f32 n=2 c=8 in=5x6x7 k=9 kernel=3 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs",
        "x=e4m3 w=e4m3_row y=f32 n=1 c=16 in=9x9 k=8 kernel=3", "x=int8 w=int8_row y=f32 n=1 c=16 in=9x9 k=8 kernel=3",
        "x=bf16 w=int4_g128 y=f32 n=1 c=128 in=9x9 k=8 kernel=3",
        "x=bf16 w=nvfp4 y=f32 global=mul n=1 c=32 in=9x9 k=8 kernel=3",
        "x=bf16 w=nvfp4 y=f32 global=div n=1 c=32 in=9x9 k=8 kernel=3",
        "x=bf16 w=int4_g128 y=f32 n=1 c=128 in=9x9 k=64 kernel=3 pack=tiles",
        "x=bf16 w=nvfp4 y=f32 global=div n=1 c=64 in=9x9 k=64 kernel=3 pack=tiles",
        "x=bf16 w=bf16 y=f32 n=2 c=8 in=5x6x7 k=9 kernel=3 pad=0x1x1 cache=2 bias=bf16 residual=bf16",
        "x=f16 w=f16 y=f32 n=2 c=8 in=9x7 k=5 kernel=3 pad=1 cache=1 bias=f32 residual=f16 x_layout=ncdhw "
        "y_layout=ncdhw"}) {
    INFO(text);
    CHECK(error_on_host(text) < 1e-5);
  }
}

TEST_CASE("bench conv: what a plain convolution does not have is refused by name", "[bench]") {
  for (const char* field : {"alpha=2", "act=relu", "residual=bf16 beta=2", "pad=1 pad_mode=replicate"}) {
    const Problem problem =
        Problem::parse(fmt::format("conv x=bf16 w=bf16 y=bf16 n=1 c=8 in=5x5 k=8 kernel=3 {}", field));
    Task task;
    problem.operation().describe(problem, task);
    INFO(field);
    CHECK_THROWS_AS(expected_outputs(*problem.as<Conv>(), task, 1), Error);
  }
}

TEST_CASE("bench conv: a result that is off or no number shows", "[bench]") {
  const ExpectedOutput expected[] = {{0, 1.0, 1.0}, {1, -3.0, 1.0}};
  CHECK(worst_error(expected, [](std::size_t i) { return i == 0 ? 1.0 : -3.0; }) == 0);
  CHECK(worst_error(expected, [](std::size_t i) { return i == 0 ? 1.0 : -1.0; }) == Approx(0.5));
  CHECK(std::isinf(worst_error(expected, [](std::size_t) { return NAN; })));
}

TEST_CASE("bench conv: cuDNN's dimensions are images, channels, axes; strides follow the layout", "[bench]") {
  const CudnnShapes last = cudnn_shapes(conv_of("x=bf16 w=bf16 y=bf16 n=2 c=96 in=6x48x83 k=32 kernel=3 pad=0x1x1"));
  CHECK(last.x.dims == list({2, 96, 6, 48, 83}));
  CHECK(last.x.strides == list({96 * 6 * 48 * 83, 1, 96 * 48 * 83, 96 * 83, 96}));
  CHECK(last.w.dims == list({32, 96, 3, 3, 3}));
  CHECK(last.w.strides == list({96 * 27, 1, 96 * 9, 96 * 3, 96}));
  CHECK(last.y.dims == list({2, 32, 4, 48, 83}));
  CHECK(last.before == list({0, 1, 1}));
  CHECK(last.strides == list({1, 1, 1}));

  const CudnnShapes first = cudnn_shapes(conv_of(
      "x=bf16 w=bf16 y=bf16 n=2 c=8 in=12x13 k=10 kernel=3 stride=2 pad=0:1 groups=2 x_layout=ncdhw y_layout=ncdhw "
      "w_layout=kctrs"));
  CHECK(first.x.strides == list({8 * 156, 156, 13, 1}));
  CHECK(first.w.dims == list({10, 4, 3, 3}));
  CHECK(first.w.strides == list({36, 9, 3, 1}));
  CHECK(first.y.dims == list({2, 10, 6, 6}));
  CHECK(first.before == list({0, 0}));
  CHECK(first.behind == list({1, 1}));
  CHECK(first.strides == list({2, 2}));

  // One axis is an image one high.
  const CudnnShapes one = cudnn_shapes(conv_of("x=bf16 w=bf16 y=bf16 n=1 c=8 in=30 k=8 kernel=3 pad=1 dilation=2"));
  CHECK(one.x.dims == list({1, 8, 1, 30}));
  CHECK(one.w.dims == list({8, 8, 1, 3}));
  CHECK(one.dilations == list({1, 2}));
  CHECK(one.before == list({0, 1}));
}

TEST_CASE("bench conv: the jobs are problems, and what is asked of them follows from the layer", "[bench]") {
  Settings settings;
  settings.layers = "all";
  std::set<std::string> labels;
  for (const ConvJob& job : conv_jobs(settings)) {
    labels.insert(job.label);
    INFO(job.problem);
    CHECK(job.rivals.empty() != job.base.empty());
    if (!job.base.empty()) CHECK_NOTHROW(Problem::parse(job.base));
    CHECK_NOTHROW(Problem::parse(job.problem));
    CHECK((job.layer != "d1" || (job.label == "bf16" && job.goal.measure == ConvMeasure::fma_rate)));
  }
  CHECK(labels.size() == 15);

  settings.layers = "1,2,6,8,12";
  settings.rows = "bf16|fp8";
  std::vector<ConvJob> jobs = conv_jobs(settings);
  REQUIRE(jobs.size() == 10);
  std::vector<double> asked;
  for (const ConvJob& job : jobs) asked.push_back(job.goal.value);
  CHECK(asked == std::vector<double>{1.3, 1.15, 0.55, 0.97, 0.75, 1.6, 1.3, 1.6, 1.1, 0.95});
  CHECK(jobs[2].goal.measure == ConvMeasure::copy_rate);
  CHECK(jobs[0].mean == "bf16");
  CHECK(mean_asked("bf16") == 1.1);
  CHECK(jobs[5].rivals == std::vector<std::string>{"fp8", "bf16"});
  CHECK(jobs[9].rivals == std::vector<std::string>{"fp8"});

  // 27 x 96 channels are no whole number of blocks of 128.
  settings.layers = "1,3", settings.rows = "int4-g128 x bf16";
  jobs = conv_jobs(settings);
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].layer == "3");

  settings.layers = "13";
  CHECK_THROWS_AS(conv_jobs(settings), Error);
  settings.layers.clear(), settings.rows = "bf17";
  CHECK_THROWS_AS(conv_jobs(settings), Error);
}

TEST_CASE("bench conv: a decode's calls are counted, and what they need besides the convolution", "[bench]") {
  Settings settings;
  settings.rows = "bf16|bf16, as called";
  int alone = 0, called = 0, residuals = 0;
  std::string groups[2];
  for (const ConvJob& job : conv_jobs(settings)) {
    if (job.calls == 0) continue;
    INFO(job.problem);
    const Conv conv = *Problem::parse(job.problem).as<Conv>();
    CHECK(job.in_passes == conv.bias.has_value());
    (job.in_passes ? called : alone) += job.calls;
    groups[job.in_passes] = job.weighted;
    residuals += conv.residual ? job.calls : 0;
  }
  CHECK(alone == 590);
  CHECK(called == 590);
  CHECK(residuals == 275);
  CHECK(calls_asked(groups[0]).asked == 1.25);
  CHECK(calls_asked(groups[1]).asked == 1.6);
  CHECK(calls_asked(groups[1]).calls == 590);

  const auto passes = [](const std::string& text) {
    std::vector<std::pair<std::string, std::size_t>> list;
    for (const Pass& p : passes_of(conv_of(text))) list.emplace_back(p.name, p.bytes);
    return list;
  };
  using List = std::vector<std::pair<std::string, std::size_t>>;
  const std::string causal = "x=bf16 w=bf16 y=bf16 n=1 c=8 in=6x10x12 k=16 kernel=3 pad=0x1x1";
  CHECK(passes(causal).empty());
  CHECK(passes(causal + " cache=2 bias=bf16 residual=bf16") == List{{"concatenation", 6 * 120 * 16},
                                                                    {"padding", 6 * (120 + 12 * 14) * 8},
                                                                    {"bias", 4 * 120 * 32},
                                                                    {"residual", 4 * 120 * 48}});
  // A convolution that pads both sides alike does so itself.
  CHECK(passes("x=bf16 w=bf16 y=bf16 n=4 c=8 in=10x12 k=16 kernel=3 pad=1 bias=bf16") == List{{"bias", 4 * 120 * 32}});
}

TEST_CASE("bench conv: parts of a layer's width are compared with the larger ones", "[bench]") {
  Settings settings;
  settings.sizes = "100, 50,33";
  std::vector<ConvJob> jobs = conv_jobs(settings);
  REQUIRE(jobs.size() == 15);  // of five layers
  settings.layers = "1";
  jobs = conv_jobs(settings);
  REQUIRE(jobs.size() == 3);
  std::vector<std::int64_t> widths;
  for (const ConvJob& job : jobs) {
    widths.push_back(Problem::parse(job.problem).as<Conv>()->in.at[2]);
    CHECK(job.whole == "1");
    CHECK(job.rivals.empty());
    CHECK(job.goal.value == (job.layer == "1@100" ? 0 : 1.03));
  }
  CHECK(widths == list({832, 416, 275}));
  for (const char* wrong : {"0", "100,x", "-5"}) {
    settings.sizes = wrong;
    CHECK_THROWS_AS(conv_jobs(settings), Error);
  }
}
