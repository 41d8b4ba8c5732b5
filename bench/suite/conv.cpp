// SPDX-License-Identifier: Apache-2.0
// Convolutions on odd shapes: every candidate by the tuner's judge, whose oracle is the reference kernel; and that one,
// with what is prepared, against sums in double precision on the host.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

// A launch on the tuner's own content, judged by the operation on the host.
std::string against_host(Suite& s, const Problem& problem, const Kernel& kernel, const Task& task) {
  OwnedStream stream(s.device());
  std::vector<std::vector<std::byte>> content;
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<void*> pointers;
  for (const Buffer& b : task.buffers) {
    std::vector<std::byte>& bytes = content.emplace_back(b.bytes);
    if (b.output) std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
    // Each matrix has a seed of its own, which its streams share: rows of signs have counts of their bits.
    const std::string matrix = b.name.substr(0, b.name.find('.'));
    const auto first = std::find_if(task.buffers.begin(), task.buffers.end(), [&](const Buffer& other) {
      return other.name.substr(0, other.name.find('.')) == matrix;
    });
    if (b.fill) b.fill(bytes, 1 + static_cast<std::uint64_t>(first - task.buffers.begin()));
    memory.push_back(std::make_unique<Memory>(s.device(), std::max<std::size_t>(b.bytes, 1)));
    if (!bytes.empty()) memory.back()->upload(bytes);
    pointers.push_back(memory.back()->data());
  }
  ConvArgs args;
  const std::vector<std::byte> bytes = task.arguments(pointers, problem.rows());
  if (bytes.size() != sizeof args) return "arguments of another size";
  std::memcpy(&args, bytes.data(), sizeof args);
  kernel.launch(stream.get(), args);
  stream.synchronize();
  std::vector<std::span<std::byte>> buffers;
  for (std::size_t i = 0; i < content.size(); ++i) {
    if (task.buffers[i].output) memory[i]->download(content[i]);
    buffers.emplace_back(content[i]);
  }
  return operation("conv").check_on_host(problem, task, buffers).wrong;
}

// For compute-sanitizer: the first candidate of each family, at sizes that fill no tile.
void one_of_each(Suite& s) {
  for (const char* text :
       {"conv x=bf16 w=bf16 y=bf16 n=1 c=96 in=6x17x23 k=96 kernel=3 pad=0x1x1 cache=2 bias=f32 residual=bf16 act=silu",
        "conv x=bf16 w=int4_g128 y=bf16 n=2 c=128 in=3x9x11 k=72 kernel=3 pad=1 workspace=4194304",
        "conv x=bf16 w=bf16 y=bf16 n=2 c=40 in=5x9x13 k=100 kernel=3 pad=1 x_layout=ncdhw y_layout=ncdhw "
        "w_layout=kctrs workspace=4194304",
        "conv x=bf16 w=bf16 y=bf16 n=1 c=72 in=4x19x21 k=3 kernel=3 pad=0x1x1 cache=2 bias=f32",
        "conv x=f16 w=f16 y=f16 n=3 c=40 in=17x19 k=40 kernel=5 pad=2 groups=40 act=relu",
        "conv x=bf16 w=bf16 y=bf16 n=3 c=64 in=7x9 k=72 kernel=1"}) {
    const Problem problem = Problem::parse(text);
    const Task task = s.engine().task(problem, s.device().arch());
    std::set<std::string> met;
    for (const Candidate& c : task.candidates)
      if (met.insert(c.family).second)
        s.check(fmt::format("{} of {}", c.text(), text),
                [&] { return against_host(s, problem, kernel_of(s, task, c)(), task); });
  }
}

// Of each problem what prepare() gives, the reference, and candidates.
void check_problems(Suite& s, std::initializer_list<const char*> problems) {
  std::vector<std::string> texts;
  for (const char* problem : problems) texts.push_back(fmt::format("conv {}", problem));
  const int most = s.extent() == Extent::full ? 24 : 4;
  Verdicts verdicts(s, texts, most);
  for (const std::string& text : texts) {
    const Problem problem = Problem::parse(text);
    const Task task = s.engine().task(problem, s.device().arch());
    s.check("against the host: " + text,
            [&] { return against_host(s, problem, s.engine().prepare(problem, s.device()), task); });
    s.check("reference against the host: " + text, [&] {
      return against_host(s, problem, kernel_of(s, task, {"reference", {{"oracle", 0}}})(), task);
    });
  }
  verdicts.check(s);
}

}  // namespace

// Formats, weights of another format than x and packed ones, pointwise kernels; each on another odd shape.
void conv_checks(Suite& s) {
  if (s.extent() == Extent::one) return one_of_each(s);
  check_problems(
      s, {"x=bf16 w=bf16 y=bf16 n=1 c=96 in=6x17x23 k=96 kernel=3 pad=0x1x1 cache=2 bias=f32 residual=bf16 act=silu",
          "x=f16 w=f16 y=f16 n=2 c=64 in=19x33 k=40 kernel=3 stride=2 pad=0:1",
          "x=bf16 w=bf16 y=f32 n=1 c=8 in=301 k=7 kernel=5 dilation=3 pad=6 pad_mode=reflect",
          "x=f16 w=f16 y=bf16 n=3 c=24 in=7x9x11 k=130 kernel=3x1x2 pad=1x0x1 pad_mode=replicatexzeroxreflect",
          "x=f32 w=f32 y=f32 n=1 c=5 in=9x9 k=6 kernel=3 pad=1",
          "x=int8 w=int8_row y=bf16 n=1 c=48 in=20x21 k=96 kernel=3",
          "x=int8_tensor w=int8_row y=int8 global=mul y_scale=0.5 n=1 c=32 in=40x9 k=33 kernel=3 pad=1",
          "x=e4m3 w=e4m3_row y=bf16 n=1 c=64 in=13x14 k=64 kernel=3 pad=1",
          "x=f16 w=e4m3_row y=f16 n=1 c=32 in=13x14 k=64 kernel=3",
          "x=bf16 w=int4_g128 y=bf16 n=1 c=128 in=5x9x9 k=72 kernel=3 pad=1",
          "x=f16 w=q4_0 y=f16 n=1 c=64 in=33x17 k=48 kernel=3 pad=1 bias=f16 act=gelu",
          "x=bf16 w=nvfp4 y=bf16 global=div n=1 c=32 in=33x17 k=48 kernel=1",
          "x=int8 w=int4_row y=f32 n=1 c=32 in=12x12 k=24 kernel=2 stride=2",
          // Layouts and channels that a kernel rewrites first, in the workspace.
          "x=bf16 w=bf16 y=bf16 n=2 c=40 in=5x19x23 k=100 kernel=3 pad=0x1x1 cache=1 x_layout=ncdhw y_layout=ncdhw "
          "w_layout=kctrs bias=f32 residual=bf16 act=silu workspace=4194304",
          "x=f16 w=f16 y=f16 n=1 c=3 in=61x66 k=32 kernel=3 pad=1 workspace=4194304",
          "x=f32 w=f32 y=f32 n=1 c=20 in=4x13x18 k=48 kernel=3 pad=1 bias=f32",
          "x=f32 w=f32 y=f32 accum=fast n=1 c=20 in=4x13x18 k=48 kernel=3 pad=1 y_layout=ncdhw workspace=4194304",
          // Weights of another format than x, which a kernel rewrites too.
          "x=bf16 w=int4_g128 y=bf16 n=2 c=128 in=5x19x23 k=100 kernel=3 pad=0x1x1 cache=1 bias=f32 residual=bf16 "
          "act=silu workspace=4194304",
          "x=f16 w=int4_g32 y=f16 n=1 c=96 in=33x37 k=96 kernel=3 pad=1 workspace=4194304",
          "x=bf16 w=nvfp4 y=bf16 global=mul n=1 c=48 in=6x18x22 k=72 kernel=3 pad=1 workspace=4194304",
          "x=bf16 w=nvfp4 y=bf16 global=div n=1 c=20 in=21x22 k=40 kernel=4 pad=1 x_layout=ncdhw y_layout=ncdhw "
          "workspace=4194304",
          "x=f16 w=q4_k y=f32 n=1 c=256 in=21x22 k=72 kernel=3 stride=2 workspace=4194304",
          "x=bf16 w=e4m3_row y=bf16 n=2 c=40 in=5x19x23 k=48 kernel=3 w_layout=kctrs workspace=4194304",
          "x=e4m3 w=int4_row y=bf16 n=1 c=192 in=5x19x23 k=96 kernel=3 pad=0x1x1 accum=fast workspace=4194304",
          "x=e4m3_tensor w=int4_row y=bf16 global=mul n=1 c=64 in=33x34 k=72 kernel=3 pad=1 workspace=4194304",
          "x=int8 w=int4_row y=bf16 n=1 c=64 in=33x34 k=72 kernel=3 pad=1 workspace=4194304",
          "x=bf16 w=int4_g32 y=bf16 n=1 c=128 in=33x41 k=136 kernel=1 workspace=4194304",
          // Pointwise ones.
          "x=bf16 w=bf16 y=bf16 n=2 c=192 in=5x33x41 k=136 kernel=1 bias=bf16 residual=bf16 workspace=34603008",
          "x=int8 w=int8_row y=bf16 n=3 c=256 in=13x9 k=72 kernel=1 act=relu",
          "x=f16 w=f16 y=f16 n=5 c=128 in=1x1 k=24 kernel=1 bias=f32 act=silu",
          "x=sign_row w=signbit_row y=bf16 n=3 c=2048 in=13x9 k=72 kernel=1 bias=f32",
          "x=signbit_row w=sign_row y=f32 n=1 c=48 in=13x9 k=33 kernel=1 act=relu",
          "x=bf16 w=int4_g128 y=bf16 n=2 c=256 in=13x9 k=128 kernel=1 bias=f32 pack=tiles workspace=34603008",
          "x=e4m3 w=nvfp4 y=bf16 global=mul n=1 c=256 in=33x34 k=192 kernel=1 pack=tiles workspace=1048576",
          "x=int8 w=int4_row y=bf16 n=1 c=256 in=7 k=64 kernel=1 pack=tiles",
          "x=bf16 w=int4_g32 y=bf16 n=1 c=64 in=9x10 k=64 kernel=3 pad=1 pack=tiles",
          "x=f16 w=nvfp4 y=f16 global=mul n=2 c=128 in=5x13x14 k=192 kernel=3 pad=0x1x1 cache=1 bias=f32 residual=f16 "
          "pack=tiles",
          "x=bf16 w=q4_k y=bf16 n=1 c=256 in=17x18 k=128 kernel=3 stride=2 pad=1 x_layout=ncdhw y_layout=ncdhw "
          "pack=tiles workspace=4194304",
          "x=e4m3 w=int4_row y=bf16 n=1 c=256 in=17x18 k=128 kernel=3 pad=1 accum=fast act=silu pack=tiles",
          "x=e4m3 w=int4_row y=bf16 n=3 c=256 in=9x7 k=64 kernel=3 pad=1 pack=tiles",
          "x=e4m3 w=nvfp4 y=bf16 global=mul n=1 c=128 in=17x18 k=128 kernel=3 pad=1 accum=fast pack=tiles",
          "x=int8 w=int4_g128 y=bf16 n=1 c=256 in=17x18 k=64 kernel=3 pad=1 pack=tiles"});
}

// Layouts, few channels and groups, fake quantization.
void conv_layout_checks(Suite& s) {
  check_problems(
      s,
      {// Layouts, channels that are no whole pieces of 16 bytes, and groups.
       "x=bf16 w=bf16 y=bf16 n=2 c=40 in=9x23x18 k=72 kernel=3 pad=1 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs "
       "bias=bf16 residual=bf16 act=silu",
       "x=f16 w=f16 y=f16 n=1 c=16 in=5x21x17 k=33 kernel=3 pad=0x1x1 pad_mode=zeroxreplicatexreflect cache=2 "
       "x_layout=ncdhw y_layout=ncdhw w_layout=kctrs",
       "x=bf16 w=bf16 y=bf16 n=2 c=3 in=45x37 k=64 kernel=7 stride=2 pad=3 x_layout=ncdhw w_layout=kctrs",
       "x=f16 w=f16 y=f32 n=1 c=64 in=19x22 k=40 kernel=1 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs",
       "x=bf16 w=bf16 y=bf16 n=1 c=7 in=31x30 k=20 kernel=3 pad=1",
       "x=f16 w=f16 y=f16 n=1 c=12 in=31x30 k=24 kernel=3 pad=1 pad_mode=replicate y_layout=ncdhw",
       "x=e4m3 w=e4m3 y=bf16 n=1 c=20 in=21x22 k=24 kernel=3 x_layout=ncdhw w_layout=kctrs",
       "x=f32 w=f32 y=f32 n=1 c=64 in=4x21x22 k=72 kernel=3 pad=1 bias=f32",
       "x=f32 w=f32 y=f32 n=2 c=24 in=21x22 k=24 kernel=3 pad=1 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs",
       "x=bf16 w=q8_0 y=bf16 n=1 c=32 in=25x17 k=48 kernel=3 pad=1 x_layout=ncdhw y_layout=ncdhw",
       "x=int8 w=int8_row y=f16 n=1 c=96 in=20x21 k=60 kernel=3 pad=1 groups=2 bias=f32 residual=f16",
       // Few output channels.
       "x=bf16 w=bf16 y=bf16 n=2 c=96 in=6x37x41 k=3 kernel=3 pad=0x1x1 cache=2 bias=f32 residual=bf16 act=silu",
       "x=f16 w=f16 y=f32 n=3 c=72 in=45x70 k=4 kernel=3x5 dilation=2x1 pad=2 pad_mode=reflect y_layout=ncdhw",
       "x=bf16 w=bf16 y=bf16 n=1 c=128 in=301 k=1 kernel=7 pad=3 pad_mode=replicate w_layout=kctrs weights=constant",
       "x=f16 w=f16 y=f16 n=1 c=40 in=19x18x21 k=2 kernel=3 pad=1",
       // Depthwise.
       "x=bf16 w=bf16 y=bf16 n=9 c=72 in=7x7 k=72 kernel=7 pad=3 groups=72 act=gelu",
       "x=f16 w=f16 y=bf16 n=2 c=40 in=57x61 k=40 kernel=3x5 dilation=2 pad=2 pad_mode=reflect groups=40 bias=f32",
       "x=f16 w=f16 y=f16 n=37 c=96 in=70 k=96 kernel=9 pad=8:0 pad_mode=replicate groups=96 weights=constant",
       "x=bf16 w=bf16 y=bf16 n=1 c=32 in=5x33x40 k=32 kernel=1x3x3 pad=0x1x1 groups=32 bias=bf16 act=silu",
       // Few channels a group.
       "x=bf16 w=bf16 y=bf16 n=2 c=6 in=9x9 k=9 kernel=3 groups=3 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs",
       "x=f16 w=f16 y=f16 n=1 c=32 in=30x31 k=32 kernel=7 pad=3 groups=32 bias=f32",
       "x=bf16 w=bf16 y=bf16 n=2 c=72 in=23x40 k=72 kernel=7 pad=3 groups=72 x_layout=ncdhw y_layout=ncdhw act=gelu",
       "x=bf16 w=bf16 y=bf16 n=3 c=19 in=77 k=19 kernel=4 pad=3:0 groups=19 cache=3 x_layout=ncdhw y_layout=ncdhw "
       "bias=bf16 act=silu",
       "x=f32 w=f32 y=f32 n=1 c=24 in=5x17x14 k=48 kernel=3 stride=1x2x2 pad=1 groups=24 pad_mode=reflect",
       "x=f16 w=f16 y=f16 n=2 c=64 in=21x19 k=64 kernel=3 dilation=2 pad=2 groups=16 pad_mode=replicate residual=f16",
       "x=int8 w=int8_row y=bf16 n=1 c=48 in=6x9x10 k=48 kernel=3 pad=1 groups=48 cache=2",
       "x=bf16 w=bf16 y=bf16 n=2 c=3 in=45x37 k=24 kernel=7 stride=2 pad=3 act=relu",
       // Fake quantized, in blocks along the im2col matrix and along channels.
       "x=bf16 w=bf16 y=f32 n=2 c=27 in=5x19x23 k=40 kernel=3 pad=1 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs "
       "quant_act=e2m1/16",
       "x=f16 w=f16 y=f16 n=1 c=32 in=6x13x17 k=72 kernel=3 pad=0x1x1 cache=2 w_layout=kctrs bias=f32 "
       "quant_act=e2m1/128",
       "x=bf16 w=bf16 y=bf16 n=3 c=64 in=33x18 k=130 kernel=3 stride=2 pad=1 pad_mode=replicate x_layout=ncdhw "
       "w_layout=kctrs act=silu quant_act=e2m1/256",
       "x=f32 w=f32 y=f32 n=1 c=33 in=20x21 k=48 kernel=3 pad=1 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs "
       "quant_act=e2m1/64",
       "x=bf16 w=bf16 y=bf16 n=1 c=64 in=25x17 k=48 kernel=3 pad=1 groups=2 residual=bf16 quant_act=e2m1/32 "
       "order=trsc",
       "x=f16 w=q4_0 y=f16 n=1 c=256 in=25x17 k=48 kernel=3 pad=1 quant_act=e2m1/256 order=trsc",
       "x=bf16 w=bf16 y=f32 n=2 c=104 in=19x33 k=64 kernel=1 quant_act=e2m1/128 workspace=4194304",
       "x=bf16 w=bf16 y=bf16 n=2 c=40 in=5x19x23 k=100 kernel=3 pad=0x1x1 cache=1 x_layout=ncdhw y_layout=ncdhw "
       "w_layout=kctrs bias=f32 residual=bf16 workspace=4194304 quant_act=e2m1/16 order=trsc",
       "x=f32 w=f32 y=f32 n=1 c=132 in=4x13x18 k=48 kernel=3 pad=1 workspace=4194304 quant_act=e2m1/256 order=trsc",
       "x=f32 w=f32 y=f32 accum=fast n=1 c=100 in=4x13x18 k=48 kernel=3 pad=1 workspace=4194304 quant_act=e2m1/64 "
       "order=trsc",
       "x=bf16 w=bf16 y=bf16 n=2 c=27 in=5x19x23 k=40 kernel=3 pad=1 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs "
       "residual=bf16 workspace=8388608 quant_act=e2m1/16",
       "x=f16 w=f16 y=f16 n=3 c=20 in=7x40 k=72 kernel=3x2 stride=1x2 pad=2:0x1 pad_mode=reflect cache=2 bias=f32 "
       "workspace=4194304 quant_act=e2m1/128",
       "x=f32 w=f32 y=f32 n=1 c=33 in=6x20x21 k=48 kernel=3 pad=1 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs "
       "workspace=16777216 quant_act=e2m1/64",
       "x=f32 w=f32 y=f32 accum=fast n=1 c=128 in=7x20x22 k=96 kernel=3 pad=1 x_layout=ncdhw y_layout=ncdhw "
       "w_layout=kctrs bias=f32 workspace=33554432 quant_act=e2m1/256",
       // The same with weights of another format, decoded or packed.
       "x=bf16 w=int4_g32 y=bf16 n=1 c=96 in=5x19x23 k=72 kernel=3 pad=0x1x1 cache=1 workspace=4194304 "
       "quant_act=e2m1/32 order=trsc",
       "x=f16 w=nvfp4 y=f16 global=mul n=2 c=48 in=17x18 k=72 kernel=3 pad=1 bias=f32 workspace=4194304 "
       "quant_act=e2m1/16",
       "x=bf16 w=int4_g32 y=bf16 n=1 c=128 in=17x18 k=64 kernel=3 pad=1 residual=bf16 pack=tiles workspace=4194304 "
       "quant_act=e2m1/128 order=trsc",
       // Only the reference takes these.
       "x=sign_row w=sign_row y=bf16 n=2 c=24 in=9x11 k=40 kernel=3 stride=2 pad=1 residual=bf16",
       "x=f16 w=f16 y=f16 n=1 c=40 in=12x13 k=24 kernel=3 pad=1 quant_act=e2m1/64",
       "x=f16 w=f16 y=f16 n=1 c=66 in=9x11 k=10 kernel=3 pad=1 groups=2",
       "x=bf16 w=bf16 y=bf16 n=1 c=12 in=9x11 k=12 kernel=3 groups=12 y_layout=ncdhw"});
}

}  // namespace tilewright::bench
