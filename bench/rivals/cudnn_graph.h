// SPDX-License-Identifier: Apache-2.0
// A convolution as an operation graph of cuDNN: what types it computes in, its operands, the graph, and its plans.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/conv.h>
#include <tilewright/engine.h>

#include "bench/conv/conv_check.h"
#include "bench/rivals/cuda.h"
#include "bench/rivals/cudnn_backend.h"

namespace tilewright::bench::cudnn {

struct Type {
  int code;            // cudnnDataType_t
  const char* format;  // the library's name of it
};
std::size_t size_of(const Type& t);

struct Variant {
  std::string name;
  Type in, out;
  int compute;  // cudnnDataType_t
  // Of |y| + the norm of its products: shows a wrong type, layout or tap, not a rounding. Fast accumulation keeps some
  // 14 bits of a sum of thousands, and e4m3 has four bits.
  double tolerance = 0.02;
  // The sums are multiplied by a factor of the tensor on their way out, as a program with 8-bit operands does. Some of
  // cuDNN's engines take such a graph and no bare convolution.
  bool scaled = false;
};

// Of one of kCudnnRivals. Each list is of equals, of which the first counts that cuDNN has plans for.
std::vector<std::vector<Variant>> variants(std::string_view what);

std::string name_of(const Descriptor& config);  // "engine 12 k2=5 k3=1"

// Operands that all variants of a rival share, but for y, which has room for each.
struct Inputs {
  enum { kX, kW, kY, kFactor };

  Inputs(const Cuda& cuda, const Device& device, const Engine& engine, std::string_view what, const Conv& conv,
         double cold_bytes);

  const Conv plain;  // the same convolution with operands of the rival's type
  const Task task;
  const std::vector<ExpectedOutput> expected;
  const Rotation rotation;
};

// A variant's operation graph, its pointers for each copy of the operands, and the plans that were kept.
struct Graph {
  Graph(const Cudnn::Impl& lib, const Cuda& cuda, const Variant& variant, const Inputs& inputs);

  std::vector<Descriptor> configs() const;             // of all modes, each once, best guess first
  Descriptor plan_of(const Descriptor& config) const;  // throws Error (unsupported), also if it wants more workspace
  void launch(const Descriptor& plan, int i) const;
  void poison() const;       // y of copy 0, so that what a launch does not write shows
  double error_now() const;  // of copy 0's y

  const Cudnn::Impl& lib;
  const Cuda& cuda;
  const Variant variant;
  const Inputs& inputs;
  Descriptor graph;
  std::vector<Descriptor> packs;
  std::vector<std::shared_ptr<const Descriptor>> plans;

 private:
  Descriptor pack(int copy) const;
};

}  // namespace tilewright::bench::cudnn
