// SPDX-License-Identifier: Apache-2.0
// Layer: a gemm or a convolution with constant weights, for programs that run models. It makes the decisions that a
// caller of Kernel makes by hand: whether w is reordered, which launches quantize x, and which memory they share.
//
//   Layer layer(engine, Problem::parse("gemm x=q8_1 w=q4_0 y=f16 m=1 n=4096 k=4096"), device,
//               {.x_from = Format::parse("f16")});
//   layer.load(stream, w);             // once; reorders w if the device's kernels need that
//   layer.launch(stream, args, room);  // for every m, at every token
//
// Thread-safe, except load(). Movable. It keeps its device alive. The Engine must outlive the Layer, and the Layer must
// outlive the CUDA graphs that captured its launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <tilewright/conv.h>
#include <tilewright/engine.h>
#include <tilewright/gemm.h>

namespace tilewright {

struct LayerOptions {
  // The float type of the x that you pass (f32, f16, bf16), if the problem's x has another format. Launches quantize x
  // with this format's default encoder. Unset: you pass x in the problem's format.
  std::optional<Format> x_from = {};
  // Whether w may be reordered. false: launches take w in the order that the problem states (pack=).
  bool pack = true;
};

// The problems that a layer launches. A problem has one row if its number of rows varies.
struct LayerProblems {
  Problem main;                        // the layer itself, with the pack= and workspace= of the target's best kernels
  std::optional<Problem> cast = {};    // before it: x to its format; none if you pass x so
  std::optional<Problem> fused = {};   // instead of both, up to `few` rows: quantizes x itself
  std::optional<Problem> repack = {};  // reorders w at load
  std::int64_t few = 0;
};

// Makes the decisions of a Layer without a GPU: prewarm and tune these problems. `problem`: a gemm, whose m does not
// matter, or a conv. If it has pack= or workspace=, these are kept. Throws Error: invalid_argument (problem, x_from),
// unsupported if x cannot be quantized from x_from.
TILEWRIGHT_EXPORT LayerProblems layer_problems(const Problem& problem, const Arch& arch,
                                               const LayerOptions& options = {});

class TILEWRIGHT_EXPORT Layer {
 public:
  // Prepares every kernel of the layer for every m with Engine::prepare(). Throws the errors of prepare() and
  // layer_problems().
  Layer(Engine& engine, const Problem& problem, const Device& device, const LayerOptions& options = {});
  Layer(Layer&&) noexcept;
  Layer& operator=(Layer&&) noexcept;
  ~Layer();

  const LayerProblems& problems() const;
  const Kernel& kernel() const;  // of problems().main
  bool packed() const;           // whether launches take w reordered

  // Size in bytes of a stream of w as launches take it; 0: there is no such stream.
  std::size_t weight_bytes(StreamName stream) const;
  // Reorders w into the caller's memory, weight_bytes() for each stream. If `to.global` is null, this stream is not
  // copied. Throws Error (invalid_argument) if packed() is false.
  void pack(Stream stream, Operand from, MutableOperand to) const;
  // Gives w to the layer; launches without a w use it. If packed(), the layer copies w in the new order, and you may
  // free data and scales when `stream` has executed the copy. Otherwise the layer keeps your pointers. It always keeps
  // your pointer to the tensor-wide factor. Do not call this while another thread launches.
  void load(Stream stream, Operand w);

  // Size in bytes of the scratch memory in which a launch of so many rows (pixels of a conv) keeps the quantized x; 0
  // if it needs none. Later work in the stream may use the memory again.
  std::size_t scratch_bytes(std::int64_t rows) const;
  // Launches the layer's kernel, after a cast if x needs one. args.x.data: floats of type `x_from` if this is set. If
  // args.w is null, the loaded weights are used. If args.workspace is null, the Engine's is used: one for each stream,
  // and one for all captures. So two graphs must not run at the same time, unless each was captured with its own
  // workspace. scratch: scratch_bytes() of memory, aligned to 16 bytes; it may be null if that is 0. The first launch
  // on a stream allocates the workspace; otherwise a launch works as Kernel::launch(). Throws the errors of
  // Kernel::launch(), and invalid_argument for scratch, for w, and for an ldx if x is cast.
  void launch(Stream stream, const GemmArgs& args, void* scratch = nullptr) const;
  void launch(Stream stream, const ConvArgs& args, void* scratch = nullptr) const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tilewright
