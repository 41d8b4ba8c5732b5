// SPDX-License-Identifier: Apache-2.0
#include "hosts/ggml/product.h"

#include <tilewright/error.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

namespace tilewright::ggml {
namespace {

constexpr std::int64_t kPanelRows = 16;
constexpr std::size_t kAlign = 64;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

struct Name {
  ggml_type type;
  const char* format;
};
constexpr Name kFormats[] = {
    {GGML_TYPE_F32, "f32"},         {GGML_TYPE_F16, "f16"},          {GGML_TYPE_BF16, "bf16"},
    {GGML_TYPE_Q4_0, "q4_0"},       {GGML_TYPE_Q4_1, "q4_1"},        {GGML_TYPE_Q5_0, "q5_0"},
    {GGML_TYPE_Q5_1, "q5_1"},       {GGML_TYPE_Q8_0, "q8_0"},        {GGML_TYPE_Q2_K, "q2_k"},
    {GGML_TYPE_Q3_K, "q3_k"},       {GGML_TYPE_Q4_K, "q4_k"},        {GGML_TYPE_Q5_K, "q5_k"},
    {GGML_TYPE_Q6_K, "q6_k"},       {GGML_TYPE_MXFP4, "ggml_mxfp4"}, {GGML_TYPE_NVFP4, "ggml_nvfp4"},
    {GGML_TYPE_IQ4_NL, "iq4_nl"},   {GGML_TYPE_IQ4_XS, "iq4_xs"},    {GGML_TYPE_TQ1_0, "tq1_0"},
    {GGML_TYPE_TQ2_0, "tq2_0"},     {GGML_TYPE_IQ3_XXS, "iq3_xxs"},  {GGML_TYPE_IQ3_S, "iq3_s"},
    {GGML_TYPE_IQ2_XXS, "iq2_xxs"}, {GGML_TYPE_IQ2_XS, "iq2_xs"},    {GGML_TYPE_IQ2_S, "iq2_s"},
    {GGML_TYPE_IQ1_S, "iq1_s"},     {GGML_TYPE_IQ1_M, "iq1_m"},      {GGML_TYPE_Q1_0, "q1_0"},
    {GGML_TYPE_Q2_0, "q2_0"},
};

Problem problem_of(ggml_type type, std::int64_t n, std::int64_t k) {
  return Problem::parse(std::string("gemm x=") + (is_float(type) ? "f32" : "q8_1") + " w=" + format_of(type) +
                        " y=f32 m=1 n=" + std::to_string(n) + " k=" + std::to_string(k));
}

LayerOptions options_of(ggml_type type) {
  LayerOptions options;
  if (!is_float(type)) options.x_from = Format::parse("f32");
  return options;
}

}  // namespace

const char* format_of(ggml_type type) {
  for (const Name& n : kFormats)
    if (n.type == type) return n.format;
  return nullptr;
}

bool is_float(ggml_type type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16; }

void Scratch::Free::operator()(void* p) const { std::free(p); }

void* Scratch::of(std::size_t bytes) {
  if (bytes > bytes_) {
    memory_.reset();
    bytes_ = aligned(bytes + bytes / 4);
    memory_.reset(std::aligned_alloc(kAlign, bytes_));
    if (!memory_) throw std::bad_alloc();
  }
  return memory_.get();
}

Product::Product(Engine& engine, const Device& device, ggml_type type, std::int64_t n, std::int64_t k)
    : n_(n),
      rows_((n + kPanelRows - 1) / kPanelRows * kPanelRows),
      row_bytes_(ggml_row_size(type, k)),
      packed_bytes_(0),
      layer_(engine, problem_of(type, rows_, k), device, options_of(type)) {
  if (std::string why = only_reference(layer_.problems().main, device.arch()); !why.empty())
    throw Error(ErrorCode::unsupported, "tensor", std::string(ggml_type_name(type)), "is not supported: " + why);
  packed_bytes_ = aligned(layer_.weight_bytes(StreamName::data)) + aligned(layer_.weight_bytes(StreamName::scales));
}

void Product::pack(const std::byte* w, std::size_t stride, std::byte* to) const {
  thread_local Scratch scratch;
  const std::byte* rows = w;
  if (stride != row_bytes_ || n_ != rows_) {  // dense rows, and rows of zeros up to a whole panel
    auto* dense = static_cast<std::byte*>(scratch.of(row_bytes_ * static_cast<std::size_t>(rows_)));
    for (std::int64_t i = 0; i < n_; ++i)
      std::memcpy(dense + static_cast<std::size_t>(i) * row_bytes_, w + static_cast<std::size_t>(i) * stride,
                  row_bytes_);
    std::memset(dense + static_cast<std::size_t>(n_) * row_bytes_, 0,
                static_cast<std::size_t>(rows_ - n_) * row_bytes_);
    rows = dense;
  }
  std::byte* scales = to + aligned(layer_.weight_bytes(StreamName::data));
  if (layer_.packed())
    layer_.pack(nullptr, {.data = rows}, {.data = to, .scales = scales});
  else
    std::memcpy(to, rows, layer_.weight_bytes(StreamName::data));
}

void Product::launch(const std::byte* packed, const float* x, std::int64_t m, float* y, std::int64_t ldy) const {
  thread_local Scratch casts, results;
  GemmArgs args;
  args.x.data = x;
  args.w.data = packed;
  args.w.scales = packed + aligned(layer_.weight_bytes(StreamName::data));
  args.m = m;
  args.y = y, args.ldy = ldy;
  if (n_ != rows_) {
    args.y = results.of(static_cast<std::size_t>(m * rows_) * sizeof(float));
    args.ldy = rows_;
  }
  const std::size_t bytes = layer_.scratch_bytes(m);
  layer_.launch(nullptr, args, bytes ? casts.of(bytes) : nullptr);
  if (n_ != rows_)
    for (std::int64_t i = 0; i < m; ++i)
      std::memcpy(y + i * ldy, static_cast<float*>(args.y) + i * rows_, static_cast<std::size_t>(n_) * sizeof(float));
}

}  // namespace tilewright::ggml
