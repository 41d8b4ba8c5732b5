// SPDX-License-Identifier: Apache-2.0
// The operation conv: its fields, what they may be, and its families.
#include <fmt/format.h>
#include <tilewright/error.h>

#include <algorithm>
#include <bit>

#include "support/must_be.h"
#include "templates/backends/cpu/panels.h"
#include "templates/common/checks.h"
#include "templates/common/operation_of.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/conv/axes.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/conv/cpu/conv.h"
#include "templates/operations/gemm/gemm.h"

namespace tilewright::conv {
namespace {

constexpr const char* kGlobals[] = {"none", "mul", "div"};
constexpr const char* kPackings[] = {"none", "tiles", "panels"};
constexpr const char* kLayouts[] = {"ndhwc", "ncdhw"};
constexpr const char* kFilterLayouts[] = {"ktrsc", "kctrs"};
constexpr const char* kAccumulations[] = {"full", "fast"};
constexpr const char* kWeights[] = {"variable", "constant"};
constexpr const char* kOrders[] = {"ctrs", "trsc"};
constexpr int kQuantBlocks[] = {16, 32, 64, 128, 256};

// Kernels with several taps unpack weights for every tile of pixels. Of more output pixels than these it is better to
// decode each weight once, to the workspace.
constexpr std::int64_t kFewPixels = 4096;

struct Fields {
  static Conv blank(Format any) { return {.x = any, .w = any, .y = any}; }
  template <class C, class V>
  static void visit(C& conv, V&& visit) {
    auto& [x, w, y, n, c, in, k, kernel, stride, pad, pad_mode, dilation, groups, x_layout, y_layout, w_layout, cache,
           global, packing, bias, accumulation, act, alpha, residual, beta, y_scale, workspace, constant_weights,
           quant_act, order] = conv;
    visit(required("x", "input, elements without a scale of their own; or signs, with one for each pixel"), x);
    visit(required("w", "weights, a row of kernel axes and channels for each output channel"), w);
    visit(required("y", "result: f32 f16 bf16 int8 e4m3 e5m2"), y);
    visit(required("n", "images", Role::size), n);
    visit(required("c", "input channels"), c);
    visit(required("in", "input extents, one to three, outermost first", Role::size), in);
    visit(required("k", "output channels"), k);
    visit(required("kernel", "extents of the kernel; one stands for all axes"), kernel);
    visit(optional("stride", "steps of the output"), stride);
    visit(optional("pad", "elements added to each axis, on both sides or before:behind"), pad);
    visit(optional("pad_mode", "what these are; one stands for all axes"), pad_mode);
    visit(optional("dilation", "steps of the kernel's taps"), dilation);
    visit(optional("groups", "of channels, each by itself"), groups);
    visit(optional("x_layout", "channels behind the axes or in front"), x_layout, kLayouts);
    visit(optional("y_layout", "channels behind the axes or in front"), y_layout, kLayouts);
    visit(optional("w_layout", "channels of a row behind the kernel's axes or in front"), w_layout, kFilterLayouts);
    visit(optional("cache", "leading elements of the outermost axis that a second tensor has"), cache);
    visit(optional("global", "tensor-wide scale: value = code * scale * global (mul) or / global (div)"), global,
          kGlobals);
    visit(optional("pack", "w was reordered once, at load, for faster kernels"), packing, kPackings);
    visit(optional("bias", "added to each output channel, [k]: f32 f16 bf16"), bias);
    visit(optional("accum", "fp8: sums by the matrix units alone, with some 14 bits; f32: rounded to bf16"),
          accumulation, kAccumulations);
    visit(optional("act", "activation"), act, gemm::kActivations);
    visit(optional("alpha", "factor of the products' sum"), alpha);
    visit(optional("residual", "a tensor that is added, laid out as y: f32 f16 bf16"), residual);
    visit(optional("beta", "factor of residual"), beta);
    visit(optional("y_scale", "y of int8, e4m3, e5m2: results are divided by it"), y_scale);
    visit(optional("workspace", "bytes of device memory that a launch may use besides"), workspace);
    visit(optional("weights", "w is complete before any launch is enqueued, for good"), constant_weights, kWeights);
    visit(optional("quant_act", "x is fake quantized to FP4 in blocks of 16 32 64 128 256; a launch passes amax"),
          quant_act);
    visit(optional("order", "of quant_act: blocks of [c / groups, kernel axes], or of a pixel's channels"), order,
          kOrders);
  }
};

std::string text_of(const Axes& axes) { return Wording<Axes>::text(axes); }

// One value for all axes, or as many as there are.
void check_rank(const char* field, int given, std::string text, int rank) {
  if (given == rank || given <= 1) return;
  throw invalid(field, std::move(text), fmt::format("must have one value or {}, as many as in has extents", rank));
}

void spread(Axes& axes, int rank, std::int64_t otherwise) {
  if (axes.rank > 1) return;
  const std::int64_t all = axes.rank ? axes.at[0] : otherwise;
  axes = {};
  axes.rank = rank;
  for (int i = 0; i < rank; ++i) axes.at[static_cast<std::size_t>(i)] = all;
}

bool all_are(const Axes& axes, std::int64_t value) {
  return std::all_of(axes.at.begin(), axes.at.begin() + axes.rank, [=](std::int64_t v) { return v == value; });
}

// What Conv leaves to its defaults, written out; ranks are checked.
Conv spread_out(Conv c) {
  const int rank = c.in.rank;
  spread(c.kernel, rank, 0);
  spread(c.stride, rank, 1);
  spread(c.pad.lo, rank, 0);
  spread(c.pad.hi, rank, 0);
  spread(c.dilation, rank, 1);
  if (c.pad_mode.rank <= 1) {
    const PadMode all = c.pad_mode.rank ? c.pad_mode.at[0] : PadMode::zero;
    c.pad_mode = {};
    c.pad_mode.rank = rank;
    std::fill_n(c.pad_mode.at.begin(), rank, all);
  }
  return c;
}

std::int64_t extent_of(const Conv& c, std::size_t i) {
  return (c.in.at[i] + c.pad.lo.at[i] + c.pad.hi.at[i] - c.dilation.at[i] * (c.kernel.at[i] - 1) - 1) / c.stride.at[i] +
         1;
}

// Precondition: spread_out().
void check_axis(const Conv& c, int axis) {
  const auto i = static_cast<std::size_t>(axis);
  check_some("in", c.in.at[i]);
  check_some("kernel", c.kernel.at[i]);
  check_some("stride", c.stride.at[i]);
  check_some("dilation", c.dilation.at[i]);
  check_extent("pad", c.pad.lo.at[i]);
  check_extent("pad", c.pad.hi.at[i]);
  const std::int64_t most = std::max(c.pad.lo.at[i], c.pad.hi.at[i]);
  if (c.pad_mode.at[i] == PadMode::reflect && most >= c.in.at[i])
    throw must_be("pad", Wording<Pads>::text(c.pad),
                  fmt::format("less than the axis' extent with pad_mode=reflect, and in={}", text_of(c.in)));
  // Coordinates are of 32 bits.
  const __int128 reach = static_cast<__int128>(c.dilation.at[i]) * (c.kernel.at[i] - 1) + 1,
                 padded = static_cast<__int128>(c.in.at[i]) + c.pad.lo.at[i] + c.pad.hi.at[i];
  if (reach > padded)
    throw invalid(
        "kernel", text_of(c.kernel),
        fmt::format("must not be longer than the padded input: axis {} of in={} has {} elements with its padding, and "
                    "the kernel spans {}",
                    axis, text_of(c.in), static_cast<std::int64_t>(padded),
                    reach > kMaxExtent ? std::string("more than 2147483647")
                                       : std::to_string(static_cast<std::int64_t>(reach))));
  if (padded > kMaxExtent)
    throw Error(ErrorCode::too_large, "pad", Wording<Pads>::text(c.pad),
                "must leave at most 2147483647 elements with the padding");
}

// Signs by signs. A pixel is a row of x, with a scale of its own.
void check_signs(const Conv& c) {
  if (!fast_path(c.w).signs)
    throw unsupported("w", c.w, fmt::format("must be sign_row or signbit_row, as x={} is", c.x.name()));
  const std::string rows = fmt::format("x={} has a scale for each pixel's row of channels", c.x.name());
  if (c.x_layout != TensorLayout::ndhwc) throw must_be("x_layout", "ncdhw", "ndhwc: " + rows);
  if (c.groups != 1) throw must_be("groups", c.groups, "1: " + rows);
  if (c.c % c.x.block() != 0)
    throw must_be("c", c.c, fmt::format("a multiple of {}, the signs of a byte", c.x.block()));
  if (c.cache != 0)
    throw must_be("cache", c.cache, fmt::format("0: {}, and a launch passes only one tensor of scales", rows));
}

void check_formats(const Conv& c) {
  const FastPath& x = fast_path(c.x);
  if (x.signs)
    check_signs(c);
  else if (c.x.block() != 1 || x.row_bytes > 0 || x.element_bytes == 0 || x.element == Element::i32)
    throw unsupported(
        "x", c.x,
        "must be f32, f16, bf16, e4m3, e5m2 or int8, the last of these with a scale of the tensor, or sign_row or "
        "signbit_row");
  check_rows_stand_alone("w", c.w);
  if (fast_path(c.w).element == Element::i32 || fast_path(c.w).zero_point)
    throw unsupported("w", c.w, "must be a format of weights without zero points");
  if (c.w_layout == FilterLayout::kctrs && c.w.block() != 1)
    throw must_be("w_layout", "kctrs", fmt::format("ktrsc: w={} has blocks of {}", c.w.name(), c.w.block()));
  if (!is_plain(c.y) || fast_path(c.y).element == Element::i32)
    throw unsupported("y", c.y, "must be f32, f16, bf16, int8, e4m3 or e5m2");
}

void check_quantization(const Conv& c) {
  const int block = c.quant_act.block;
  if (block == 0) {
    if (c.order != QuantOrder::ctrs) throw must_be("order", "trsc", "left out: the problem has no quant_act");
    return;
  }
  const std::string text = Wording<QuantAct>::text(c.quant_act);
  if (std::find(std::begin(kQuantBlocks), std::end(kQuantBlocks), block) == std::end(kQuantBlocks))
    throw must_be("quant_act", text, fmt::format("e2m1/ and one of {}", fmt::join(kQuantBlocks, ", ")));
  if (!is_float(c.x))
    throw invalid("quant_act", text,
                  fmt::format("is only supported for f32, f16 and bf16, and x={}; leave it out", c.x.name()));
}

void check_packing(const Conv& c, const Gemm& g) {
  if (c.packing == Packing::none) return;
  const char* const packing = kPackings[static_cast<int>(c.packing)];
  if (c.groups > 1) throw invalid("pack", packing, "is not supported for channels in groups; leave it out");
  if (c.w_layout != FilterLayout::ktrsc) throw must_be("w_layout", "kctrs", "ktrsc: w is packed");
  if (c.packing == Packing::tiles)
    return gemm::check_tiles("pack", packing, c.w, c.x, g.n, g.k, "k", "kernel elements times c");
  if (!is_float(c.w)) throw unsupported("w", c.w, "must be f32, f16 or bf16 with pack=panels");
  cpu::check_panels("pack", packing, c.w, c.x, g.n, g.k, "k");
}

class ConvOperation final : public OperationOf<Conv, Fields> {
 public:
  std::string_view title() const override {
    return "convolution over one to three axes, y = act(alpha conv(x, w) + bias) + beta residual";
  }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&pointwise_wgmma(), &wgmma(),     &kn2row(), &pointwise_mma(), &mma(),
                                         &pointwise_gemv(),  &depthwise(), &direct(), &reference()};
    return list;
  }
  std::span<const Family* const> cpu_families() const override { return cpu::conv_families(); }
  std::optional<Candidate> oracle(const Problem&, const Arch& arch) const override {
    return Candidate{arch.cpu ? "cpu_reference" : "reference", {{"oracle", 1}}};
  }
  std::optional<Problem> packed(const Problem& problem, const Arch& arch) const override {
    Conv c = *problem.as<Conv>();
    if (arch.cpu) return cpu::packed(c, arch);
    const Gemm g = as_gemm(c);
    if (c.groups > 1 || c.w_layout != FilterLayout::ktrsc || !gemm::packable(g)) return {};
    if (g.m > kFewPixels && !not_pointwise(c).empty()) return {};
    c.packing = Packing::tiles;
    const Problem packed(c);
    const auto serves = [&](const Family* f) { return f->why_not(packed, arch).empty(); };
    if (std::none_of(families().begin(), families().end() - 1, serves)) return {};
    return packed;
  }
  std::optional<Repack> repack(const Problem& problem) const override {
    return gemm::repack(as_gemm(*problem.as<Conv>()));
  }
  std::vector<Recommendation> recommended(const Problem& problem, const Arch& arch) const override {
    std::vector<Recommendation> list;
    Conv c = *problem.as<Conv>();
    if (const std::optional<Problem> best = packed(problem, arch)) {
      c = *best->as<Conv>();
      list.push_back({fmt::format("pack={}", kPackings[static_cast<int>(c.packing)]),
                      "reorder w once, at load: Engine::pack(), or pack_weights() on the host", *best});
    }
    c.workspace = workspace_of_wgmma(c);
    if (c.workspace > 0 && c.workspace <= kMaxExtent && wgmma().why_not(c, arch).empty())
      list.push_back({fmt::format("workspace={}", c.workspace),
                      "device memory, zero when first used, to which a launch writes what its kernels read in another "
                      "layout or format, for launches that follow each other",
                      c});
    return list;
  }

 protected:
  void make_canonical(Conv& c) const override {
    const int rank = c.in.rank;
    check_rank("kernel", c.kernel.rank, text_of(c.kernel), rank);
    check_rank("stride", c.stride.rank, text_of(c.stride), rank);
    check_rank("pad", c.pad.lo.rank, Wording<Pads>::text(c.pad), rank);
    check_rank("pad", c.pad.hi.rank, Wording<Pads>::text(c.pad), rank);
    check_rank("pad_mode", c.pad_mode.rank, Wording<PadModes>::text(c.pad_mode), rank);
    check_rank("dilation", c.dilation.rank, text_of(c.dilation), rank);
    c = spread_out(c);
    if (all_are(c.stride, 1)) c.stride = {};
    if (all_are(c.dilation, 1)) c.dilation = {};
    for (int i = 0; i < rank; ++i) {  // an axis without padding has no mode
      const auto at = static_cast<std::size_t>(i);
      if (c.pad.lo.at[at] == 0 && c.pad.hi.at[at] == 0) c.pad_mode.at[at] = PadMode::zero;
    }
    if (all_are(c.pad.lo, 0) && all_are(c.pad.hi, 0)) c.pad = {};
    if (std::all_of(c.pad_mode.at.begin(), c.pad_mode.at.begin() + rank, [](PadMode m) { return m == PadMode::zero; }))
      c.pad_mode = {};
    if (c.quant_act.block && all_are(c.kernel, 1)) c.order = QuantOrder::ctrs;  // of one tap, both orders are the same
  }
  void check(const Conv& conv) const override {
    if (conv.in.rank < 1) throw invalid("in", "", "must have one to three extents");
    const Conv c = spread_out(conv);
    check_formats(c);
    check_quantization(c);
    check_some("n", c.n);
    check_some("c", c.c);
    check_some("k", c.k);
    for (int i = 0; i < c.in.rank; ++i) check_axis(c, i);
    check_some("groups", c.groups);
    for (const auto& [field, channels] : {std::pair{"c", c.c}, std::pair{"k", c.k}})
      if (channels % c.groups != 0)
        throw must_be("groups", c.groups,
                      fmt::format("a divisor of {}={}, which the groups share evenly", field, channels));
    check_extent("cache", c.cache);
    const std::int64_t before = (c.kernel.at[0] - 1) * c.dilation.at[0];
    if (c.cache > before || c.cache >= c.in.at[0])
      throw must_be("cache", c.cache,
                    fmt::format("0 to {}: the kernel reaches no further back on the outermost axis, and in={} has "
                                "some of its own",
                                std::min(before, c.in.at[0] - 1), text_of(c.in)));
    check_extent("workspace", c.workspace);
    const Gemm g = as_gemm(c);
    const auto check_size = [](const char* field, double elements, Format f) {
      const double bytes = elements * static_cast<double>(f.total_bytes(1, f.block())) / f.block();
      if (bytes > static_cast<double>(kMaxBytes) || elements > 0x1p62)
        throw Error(ErrorCode::too_large, field, fmt::format("{} elements of {}", elements, f.name()),
                    "must have at most 2^47 bytes");
    };
    check_size("x", static_cast<double>(c.n) * static_cast<double>(c.c) * Wording<Axes>::product(c.in), c.x);
    check_size("y", static_cast<double>(g.m) * static_cast<double>(c.k), c.y);
    double columns = static_cast<double>(c.c / c.groups);
    for (int i = 0; i < c.in.rank; ++i) columns *= static_cast<double>(c.kernel.at[static_cast<std::size_t>(i)]);
    if (columns > static_cast<double>(kMaxExtent))
      throw Error(ErrorCode::too_large, "kernel", text_of(c.kernel),
                  "must have at most 2147483647 taps times channels of a group");
    check_size("w", static_cast<double>(c.k) * columns, c.w);
    if (g.k % c.w.block() != 0)
      throw invalid(
          "c", std::to_string(c.c),
          fmt::format(
              "is not supported: {} kernel elements of {} channels are a row of w={}, whose blocks have {} elements",
              g.k / (c.c / c.groups), c.c / c.groups, c.w.name(), c.w.block()));
    check_packing(c, g);
    gemm::check_epilogue(g, "residual");
    gemm::check_global(g);
    gemm::check_accumulation(g);
  }
  Extents extents_of(const Conv& c) const override { return {as_gemm(c).m, c.k, true}; }
  void set_rows(Conv&, std::int64_t) const override {}
  // Chunks of a video, and batches, share what was tuned for about as many output pixels, up to a power of two.
  std::int64_t size_bucket_of(const Conv& c) const override {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(as_gemm(c).m)));
  }
  double bytes_of(const Conv& c) const override {
    const Gemm g = as_gemm(c);
    std::int64_t pixels = c.n;  // of x and what is cached
    for (int i = 0; i < c.in.rank; ++i) pixels *= c.in.at[static_cast<std::size_t>(i)];
    const auto bytes = [](Format f, std::int64_t rows, std::int64_t columns) {
      return static_cast<double>(f.total_bytes(rows, columns));
    };
    return bytes(c.x, pixels, c.c) + gemm::w_bytes(g) + bytes(c.y, g.m, c.k) +
           (c.residual ? bytes(*c.residual, g.m, c.k) : 0.0) + (c.quant_act.block ? sizeof(float) : 0);
  }
  double ops_of(const Conv& c) const override {
    const Gemm g = as_gemm(c);
    return 2.0 * static_cast<double>(g.m) * static_cast<double>(c.k) * static_cast<double>(g.k);
  }
  Contract contract_of(const Conv& c) const override { return conv::contract(c); }
  void describe_task(const Conv& c, Task& task) const override { conv::describe(c, task); }
  void compute(const Conv& c, const Task& task, HostBuffers buffers) const override {
    conv::run_on_host(c, task, buffers);
  }
  HostCheck judge(const Conv& c, const Task& task, HostBuffers buffers) const override {
    return conv::check_on_host(c, task, buffers);
  }
};

}  // namespace

std::string scaled_pixels(const Conv& conv) {
  if (!fast_path(conv.x).row_bytes) return {};
  return fmt::format("x={} has a scale for each pixel, and taps are summed before scales are applied", conv.x.name());
}

std::string in_panels(const Conv& conv) {
  return conv.packing == Packing::panels ? "w is packed in panels, for CPUs" : "";
}

bool single_precision(Format x, Format w) {
  return fast_path(x).element == Element::f32 && fast_path(w).element == Element::f32;
}

int multiplied_bytes(const Conv& conv) {
  const FastPath& x = fast_path(conv.x);
  return x.element == Element::f32 && conv.accumulation == Accumulation::fast ? 2 : std::max(1, x.element_bytes);
}

// Those that have tiles for x of its element (formats/shared/tiles.cuh), in which scales of blocks are part of weights.
std::optional<double> written_rounding(Format w, Format x) {
  const TileInfo* tiles = tile_info(w, x);
  if (!tiles || tiles->element != fast_path(x).element) return {};
  if (tiles->scale_bytes && fast_path(x).element_bytes == 1) return {};
  return tiles->rounding;
}

tw::conv::Shape shape_of(const Conv& conv) {
  const Conv c = spread_out(conv);
  tw::conv::Shape s{};
  const auto narrow = [](std::int64_t v) { return static_cast<std::int32_t>(v); };
  s.n = c.n, s.c = narrow(c.c), s.k = narrow(c.k), s.groups = narrow(c.groups), s.cache = narrow(c.cache);
  s.first_axis = kMostAxes - c.in.rank;
  for (int i = 0; i < c.in.rank; ++i) {
    const auto at = static_cast<std::size_t>(i);
    s.axes[s.first_axis + i] = {narrow(c.in.at[at]),
                                narrow(extent_of(c, at)),
                                narrow(c.kernel.at[at]),
                                narrow(c.stride.at[at]),
                                narrow(c.pad.lo.at[at]),
                                narrow(c.dilation.at[at]),
                                static_cast<tw::conv::Pad>(c.pad_mode.at[at])};
  }
  s.x_channels_first = c.x_layout == TensorLayout::ncdhw;
  s.y_channels_first = c.y_layout == TensorLayout::ncdhw;
  s.w_channels_first = c.w_layout == FilterLayout::kctrs;
  s.global_divides = c.global == Global::div;
  s.fast = c.accumulation == Accumulation::fast;
  s.constant_weights = c.constant_weights;
  s.quant_block = c.quant_act.block, s.quant_channels = c.order == QuantOrder::trsc;
  s.alpha = static_cast<float>(c.alpha), s.beta = static_cast<float>(c.beta);
  s.y_factor = static_cast<float>(1.0 / c.y_scale);
  s.workspace = c.workspace;
  const auto set_maps = [&](tw::conv::MapAxis(&map)[4], const tw::conv::Shape& of, std::int64_t channels,
                            std::int64_t first) {
    std::int64_t step = channels;
    for (int a = 0; a < kMostAxes; ++a) {
      const int axis = kMostAxes - 1 - a;
      map[a] = {axis == of.first_axis ? first : of.axes[axis].in, step};
      step *= map[a].extent;
    }
    map[3] = {c.n, step};
  };
  const std::int64_t first = s.axes[s.first_axis].in;
  set_maps(s.x_map, s, c.c, first - c.cache);
  set_maps(s.cache_map, s, c.c, c.cache);
  s.w_map[0] = {c.k, s.columns()}, s.w_map[1] = {s.taps(), s.c / s.groups};
  const tw::conv::Shape written = s.quantizes_columns() ? s.unfolded() : s;
  const std::int64_t channels = tw::conv::written_channels(written.c, multiplied_bytes(c));
  set_maps(s.written_x_map, written, channels, written.axes[written.first_axis].in);
  s.written_w_map[0] = {c.k, written.taps() * channels}, s.written_w_map[1] = {written.taps(), channels};
  s.gemm_m = s.n * s.pixels(), s.gemm_n = s.k, s.gemm_k = s.columns();
  return s;
}

Gemm as_gemm(const Conv& conv) {
  const Conv c = spread_out(conv);
  Gemm g{.x = c.x, .w = c.w, .y = c.y};
  // What no memory holds is not legal; until that is known, it must not wrap around.
  constexpr __int128 kMost = std::int64_t{1} << 62;
  __int128 pixels = c.n, columns = c.c / c.groups;
  for (int i = 0; i < c.in.rank; ++i) {
    const auto at = static_cast<std::size_t>(i);
    pixels = std::min(pixels * extent_of(c, at), kMost), columns = std::min(columns * c.kernel.at[at], kMost);
  }
  g.m = static_cast<std::int64_t>(pixels), g.n = c.k, g.k = static_cast<std::int64_t>(columns);
  g.global = c.global, g.packing = c.packing, g.bias = c.bias, g.act = c.act;
  // What a gemm has no fast way for.
  g.accumulation = single_precision(c.x, c.w) ? Accumulation::full : c.accumulation;
  g.alpha = c.alpha, g.c = c.residual, g.beta = c.beta, g.y_scale = c.y_scale;
  g.workspace = c.workspace, g.constant_weights = c.constant_weights;
  return g;
}

const Operation& operation() {
  static const ConvOperation operation;
  return operation;
}

}  // namespace tilewright::conv

namespace tilewright {

Axes output_extents(const Conv& conv) {
  const tw::conv::Shape s = conv::shape_of(conv);
  Axes out;
  out.rank = conv.in.rank;
  for (int i = 0; i < out.rank; ++i) out.at[static_cast<std::size_t>(i)] = s.axes[kMostAxes - out.rank + i].out;
  return out;
}

}  // namespace tilewright
