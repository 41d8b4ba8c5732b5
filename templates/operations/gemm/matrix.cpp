// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/gemm/matrix.h"

#include <tilewright/pack.h>

#include <cstring>

#include "templates/backends/cpu/panels.h"
#include "templates/common/describe.h"
#include "templates/formats/shared/fast_path.h"

namespace tilewright::gemm {
namespace {

// A stream of a packed w, which repeats a pool of strips of tiles, or of panels.
void fill_packed(const Gemm& g, float deviation, StreamName stream, std::uint64_t seed, std::span<std::byte> bytes) {
  std::int64_t rows = g.packing == Packing::panels ? cpu::kPanel : kTileRows;
  // Rows that share scales stay together.
  if (const int share = fast_path(g.w).scale_rows; share > rows) rows = g.n % share == 0 ? share : g.n;
  const std::int64_t strips = g.n / rows, pool = pool_size(strips, rows * g.k);
  Gemm part = g;
  part.n = pool * rows;
  const Content content{g.w, part.n, g.k, deviation, g.global == Global::div};
  std::vector<std::vector<std::byte>> from, to;
  const auto place = [](std::vector<std::vector<std::byte>>& streams, StreamName which, std::int64_t size,
                        MutableOperand& operand) -> std::span<std::byte> {
    streams.emplace_back(static_cast<std::size_t>(size));
    operand.set(which, streams.back().data());
    return streams.back();
  };
  MutableOperand plain, packed;
  const auto& specs = g.w.info().streams;
  for (int i = 0; i < static_cast<int>(specs.size()); ++i)
    fill_stream(content, i, seed_of(seed, "w"), place(from, specs[i].stream, g.w.stream_bytes(i, part.n, g.k), plain));
  std::span<const std::byte> wanted;
  for (const StreamName which : kStreams)
    if (const std::int64_t size = packed_bytes(part, which)) {
      const std::span<std::byte> space = place(to, which, size, packed);
      if (stream == which) wanted = space;
    }
  pack_weights(part, plain, packed);
  if (stream == StreamName::global)
    std::memcpy(bytes.data(), wanted.data(), std::min(bytes.size(), wanted.size()));
  else
    repeat_pool(wanted, pool, strips, wanted.size() / static_cast<std::size_t>(pool), bytes);
}

}  // namespace

Gemm packed_gemm(Format w, Format x, std::int64_t n, std::int64_t k, Packing packing) {
  Gemm g{.x = x, .w = w, .y = x};
  g.n = n, g.k = k, g.packing = packing;
  return g;
}

const Matrix& add_packed(Task& task, const std::string& name, const Gemm& g, float deviation, bool output) {
  Matrix m{name, g.w, g.n, g.k, -1, -1, -1, g.global == Global::div};
  m.store = [g](Operand plain, MutableOperand stored) { pack_weights(g, plain, stored); };
  m.restore = [g](Operand stored, MutableOperand plain) { unpack_weights(g, stored, plain); };
  for (const StreamName stream : kStreams) {
    Buffer b;
    b.name = name + "." + name_of(stream);
    b.output = output;
    b.bytes = static_cast<std::size_t>(packed_bytes(g, stream));
    if (b.bytes == 0) continue;
    b.fill = [g, deviation, stream](std::span<std::byte> bytes, std::uint64_t seed) {
      fill_packed(g, deviation, stream, seed, bytes);
    };
    m.slot(stream) = static_cast<int>(task.buffers.size());
    task.buffers.push_back(std::move(b));
  }
  task.matrices.push_back(std::move(m));
  return task.matrices.back();
}

}  // namespace tilewright::gemm
