// SPDX-License-Identifier: Apache-2.0
// Matrices in host memory: codecs of formats, and packing.
#include <fmt/format.h>

#include "capi/handles.h"

namespace tilewright::capi {

StreamName stream_name(const tw_stream_name& stream) {
  const int value = number_of(stream);
  if (value != TW_DATA && value != TW_SCALES && value != TW_GLOBAL)
    refuse("stream", std::to_string(value), "must be TW_DATA, TW_SCALES or TW_GLOBAL");
  return static_cast<StreamName>(value);
}

Operand operand(const tw_operand& o) { return {o.data, o.scales, o.global}; }
MutableOperand operand(const tw_mutable_operand& o) { return {o.data, o.scales, o.global}; }

void require_streams(Format format, Operand o, const char* name) {
  for (const StreamSpec& s : format.info().streams) {
    if (o.at(s.stream) == nullptr)
      refuse(fmt::format("{}.{}", name, name_of(s.stream)), "null",
             fmt::format("must be given: {} has this stream", format.name()));
  }
}

namespace {

void check_extents(Format format, std::int64_t rows, std::int64_t cols) {
  if (rows < 0) refuse("rows", std::to_string(rows), "must be 0 or more");
  if (cols < 0 || cols % format.block() != 0)
    refuse("cols", std::to_string(cols),
           fmt::format("must be a multiple of {}, the block of {}", format.block(), format.name()));
}

int encoder_index(Format format, const char* name) {
  if (name == nullptr) return 0;
  std::string allowed;
  const auto encoders = format.info().encoders;
  for (std::size_t i = 0; i < encoders.size(); ++i) {
    if (std::string_view(name) == encoders[i]) return static_cast<int>(i);
    allowed += (i ? ", " : "") + std::string(encoders[i]);
  }
  refuse("encoder", name, fmt::format("must be an encoder of {}: {}", format.name(), allowed));
}

const Gemm& packed_gemm(const tw_problem* problem) {
  const Gemm* gemm = handle(problem, "gemm").value.as<Gemm>();
  if (gemm == nullptr) refuse("gemm", problem->text, "must be a problem of the operation gemm");
  return *gemm;
}

}  // namespace
}  // namespace tilewright::capi

using namespace tilewright;
using namespace tilewright::capi;

extern "C" {

tw_status tw_stream_bytes(const char* format, tw_stream_name stream, int64_t rows, int64_t cols, int64_t* bytes,
                          tw_error** error) {
  return guarded(error, [&] {
    const Format f = Format::parse(text(format, "format"));
    const StreamName wanted = stream_name(stream);
    check_extents(f, rows, cols);
    std::int64_t found = 0;
    for (std::size_t i = 0; i < f.info().streams.size(); ++i) {
      if (f.info().streams[i].stream == wanted) found = f.stream_bytes(static_cast<int>(i), rows, cols);
    }
    required(bytes, "bytes") = found;
  });
}

tw_status tw_encode(const char* format, const char* encoder, const float* values, int64_t rows, int64_t cols,
                    tw_mutable_operand to, tw_error** error) {
  return guarded(error, [&] {
    const Format f = Format::parse(text(format, "format"));
    const int rule = encoder_index(f, encoder);
    check_extents(f, rows, cols);
    if (rows == 0 || cols == 0) return;
    require_streams(f, operand(to), "to");
    f.info().encode(&required(values, "values"), rows, cols, operand(to), rule);
  });
}

tw_status tw_decode(const char* format, tw_operand from, int64_t rows, int64_t cols, float* values, tw_error** error) {
  return guarded(error, [&] {
    const Format f = Format::parse(text(format, "format"));
    check_extents(f, rows, cols);
    if (rows == 0 || cols == 0) return;
    require_streams(f, operand(from), "from");
    f.info().decode(operand(from), rows, cols, &required(values, "values"));
  });
}

tw_status tw_global_for(const char* format, float amax, float* factor, tw_error** error) {
  return guarded(error, [&] {
    const FormatInfo& f = Format::parse(text(format, "format")).info();
    if (!(amax >= 0)) refuse("amax", fmt::format("{}", amax), "must be 0 or more");
    required(factor, "factor") = f.global_for ? f.global_for(amax) : 1.0f;
  });
}

tw_status tw_packed_bytes(const tw_problem* gemm, tw_stream_name stream, int64_t* bytes, tw_error** error) {
  return guarded(error, [&] { required(bytes, "bytes") = packed_bytes(packed_gemm(gemm), stream_name(stream)); });
}

tw_status tw_pack_weights(const tw_problem* gemm, tw_operand from, tw_mutable_operand to, tw_error** error) {
  return guarded(error, [&] { pack_weights(packed_gemm(gemm), operand(from), operand(to)); });
}

tw_status tw_unpack_weights(const tw_problem* gemm, tw_operand from, tw_mutable_operand to, tw_error** error) {
  return guarded(error, [&] { unpack_weights(packed_gemm(gemm), operand(from), operand(to)); });
}

}  // extern "C"
