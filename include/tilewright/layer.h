// SPDX-License-Identifier: Apache-2.0
// Layer: a gemm or a convolution whose weights stay, as engines for models have them. It decides what a caller of
// Kernel decides by hand: whether w is reordered, which launches quantize x, which memory they share.
//
//   Layer layer(engine, Problem::parse("gemm x=q8_1 w=q4_0 y=f16 m=1 n=4096 k=4096"), device, {.x_from =
//   Format::parse("f16")}); layer.load(stream, w);             // once; w is reordered if this device's kernels want
//   that layer.launch(stream, args, room);  // for every m, at every token
//
// Thread-safe but for load(). Movable. It keeps its device, but the Engine must outlive it; it must outlive the CUDA
// graphs that captured its launches.
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
  // The floats that x arrives as (f32, f16, bf16) where the problem's x is another format: launches quantize it by the
  // format's default encoder. Unset: x arrives in the problem's format.
  std::optional<Format> x_from = {};
  // Whether w may be reordered. false: launches take w in the order that the problem's text says (pack=).
  bool pack = true;
};

// What a layer launches, each problem with one row where its rows vary.
struct LayerProblems {
  Problem main;                        // the layer itself, with pack= and workspace= as the target's kernels want them
  std::optional<Problem> cast = {};    // before it: x to its format; none where x arrives in it
  std::optional<Problem> fused = {};   // instead of both, up to `few` rows: quantizes x itself
  std::optional<Problem> repack = {};  // reorders w at load
  std::int64_t few = 0;
};

// The decisions of a Layer, without a GPU: what to prewarm and to tune. `problem`: a gemm, whose m does not matter, or
// a conv; its pack= and workspace= are kept where it has them. Throws Error: invalid_argument (problem, x_from),
// unsupported if x cannot be quantized from x_from.
TILEWRIGHT_EXPORT LayerProblems layer_problems(const Problem& problem, const Arch& arch,
                                               const LayerOptions& options = {});

class TILEWRIGHT_EXPORT Layer {
 public:
  // Prepares every kernel of the layer, for every m, as Engine::prepare() does: throws what that and layer_problems()
  // throw.
  Layer(Engine& engine, const Problem& problem, const Device& device, const LayerOptions& options = {});
  Layer(Layer&&) noexcept;
  Layer& operator=(Layer&&) noexcept;
  ~Layer();

  const LayerProblems& problems() const;
  const Kernel& kernel() const;  // of problems().main
  bool packed() const;           // whether launches take w reordered

  // Bytes of a stream of w as launches take it; 0: it has none.
  std::size_t weight_bytes(StreamName stream) const;
  // Reorders w into memory of the caller's, of weight_bytes() each; a null `to.global` leaves that stream where it is.
  // Throws Error (invalid_argument) if packed() is false.
  void pack(Stream stream, Operand from, MutableOperand to) const;
  // Makes w the layer's: launches that pass none take it. A layer with packed() copies it in the new order, so that
  // data and scales may be freed once `stream` has come so far; else they stay where they are. A factor of the tensor
  // stays in both cases. Not while another thread launches.
  void load(Stream stream, Operand w);

  // Memory that a launch of so many rows (pixels of a conv) needs besides, for x in its format; 0 where it needs none.
  // What comes later in the stream may use it again.
  std::size_t scratch_bytes(std::int64_t rows) const;
  // One launch, or a cast and one. args.x.data: floats of `x_from` if that is set. A null args.w takes what was loaded.
  // A null args.workspace takes the Engine's: one for each stream, and one for all captures, so that two graphs must
  // not run at once unless each was captured with a workspace of its own. scratch: scratch_bytes() on 16 bytes, may be
  // null where that is 0. The first launch on a stream allocates its workspace; everything else is as
  // Kernel::launch() does it. Throws Error as that does, and invalid_argument for scratch, w, and an ldx of floats that
  // are cast.
  void launch(Stream stream, const GemmArgs& args, void* scratch = nullptr) const;
  void launch(Stream stream, const ConvArgs& args, void* scratch = nullptr) const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tilewright
