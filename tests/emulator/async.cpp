// SPDX-License-Identifier: Apache-2.0
#include "emulator/async.h"

#include <algorithm>
#include <cstring>

#include "emulator/fiber.h"
#include "emulator/scheduler.h"

namespace tw::emu {
namespace {
constexpr i64 kMaxBytes = (1 << 20) - 1;  // of a phase
constexpr u64 kMapMark = 0x50414d524f534e45u;

bool aligned(const void* p, std::uintptr_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

// The 8 bytes of an initialized barrier; a chip's are opaque too.
u64 mark(u32 offset) { return 0x7ff7626172726965u ^ (static_cast<u64>(offset) << 16); }

void require(bool legal, const std::string& what) {
  if (!legal) throw std::invalid_argument("tensor_map: " + what);
}

const char* name(Transfer::What what) {
  return what == Transfer::What::bulk     ? "bulk_load"
         : what == Transfer::What::tensor ? "tensor_load"
                                          : "store_cluster_async";
}

std::string issued_by(const Transfer& t) {
  return std::string(name(t.what)) + " by " + place(*t.issuer) + ", thread " + std::to_string(t.thread);
}

// Calls f(offset of 16 bytes in shared memory, where they come from) for the whole of a box. Null: outside of the map.
template <class F>
void for_chunks(const Transfer& t, const F& f) {
  const Tensor& tensor = *t.box;
  const i64 first = static_cast<i64>(t.at[0]) * static_cast<i64>(tensor.stride[0]);
  u32 offset = t.offset, place[5] = {};
  for (bool more = true; more;) {
    bool inside = true;
    const u8* from = tensor.base;
    for (u32 i = 1; i < tensor.rank; ++i) {
      const i64 at = static_cast<i64>(t.at[i]) + place[i] * tensor.steps[i];
      inside = inside && at >= 0 && at < static_cast<i64>(tensor.size[i]);
      if (inside) from += static_cast<u64>(at) * tensor.stride[i];
    }
    for (i64 b = first; b < first + tensor.box[0]; b += 16, offset += 16)
      f(tensor.swizzle ? swizzle(offset, tensor.swizzle) : offset,
        inside && b >= 0 && b < static_cast<i64>(tensor.size[0]) ? from + b : nullptr);
    u32 axis = 1;
    while (axis < tensor.rank && ++place[axis] == tensor.box[axis]) place[axis++] = 0;
    more = axis < tensor.rank;
  }
}

void require_span(u32 box_bytes, u32 swizzle_bytes) {
  require(swizzle_bytes == 0 || swizzle_bytes == 32 || swizzle_bytes == 64 || swizzle_bytes == 128,
          "swizzle over " + std::to_string(swizzle_bytes) + " bytes");
  require(box_bytes % 16 == 0, "a box row is not a multiple of 16 bytes");
  require(!swizzle_bytes || box_bytes <= swizzle_bytes, "a box row is longer than the swizzle's span");
}

TensorMap map_of(const Tensor& tensor) {
  require(tensor.base && aligned(tensor.base, 16), "the base is not 16-byte aligned");
  for (u32 i = 1; i < tensor.rank; ++i)
    require(tensor.stride[i] % 16 == 0 && tensor.stride[i] < 1ull << 40,
            "a stride of " + std::to_string(tensor.stride[i]) + " bytes is not a multiple of 16 below 2^40");
  TensorMap map{};
  static_assert(sizeof tensor <= sizeof map);
  std::memcpy(&map, &tensor, sizeof tensor);
  return map;
}
}  // namespace

TensorMap tensor_map(const void* base, int element_bytes, u64 inner, u64 rows, u64 row_stride_bytes, u32 box_inner,
                     u32 box_rows, u32 swizzle_bytes, u32 box_panels) {
  const auto element = static_cast<u32>(element_bytes);
  require(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8,
          "elements of " + std::to_string(element_bytes) + " bytes");
  require(inner >= 1 && rows >= 1 && inner <= 1ull << 32 && rows <= 1ull << 32, "extents must be 1 to 2^32");
  require(row_stride_bytes >= inner * element, "rows overlap");
  for (const u32 box : {box_inner, box_rows, box_panels}) require(box >= 1 && box <= 256, "a box is 1 to 256 each way");
  require(inner % box_inner == 0,
          "rows of " + std::to_string(inner) + " elements are not whole panels of " + std::to_string(box_inner));
  require_span(box_inner * element, swizzle_bytes);
  const u32 panel = box_inner * element;
  return map_of({kMapMark,
                 static_cast<const u8*>(base),
                 {panel, rows, inner / box_inner},
                 {element, row_stride_bytes, panel},
                 {static_cast<u16>(panel), static_cast<u16>(box_rows), static_cast<u16>(box_panels)},
                 {1, 1, 1},
                 3,
                 static_cast<u8>(swizzle_bytes)});
}

TensorMap tensor_map(const void* base, int element_bytes, u64 inner, u32 box_inner, u32 swizzle_bytes,
                     const std::vector<MapAxis>& axes) {
  const auto element = static_cast<u32>(element_bytes);
  require(element_bytes == 1 || element_bytes == 2 || element_bytes == 4,
          "elements of " + std::to_string(element_bytes) + " bytes");
  require(!axes.empty() && axes.size() <= 4, "a rank of 2 to 5 is needed");
  require(inner * element % 16 == 0, "the innermost axis is not a multiple of 16 bytes");
  require(box_inner >= 1 && box_inner <= 256, "a box is 1 to 256 each way");
  require_span(box_inner * element, swizzle_bytes);
  Tensor t{kMapMark,
           static_cast<const u8*>(base),
           {inner * element},
           {element},
           {static_cast<u16>(box_inner * element)},
           {1},
           static_cast<u8>(1 + axes.size()),
           static_cast<u8>(swizzle_bytes)};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const MapAxis& a = axes[i];
    require(a.size >= 1 && a.size <= 1ull << 32, "extents must be 1 to 2^32");
    require(a.step >= 1 && a.step <= 8, "a box takes every eighth place at most");
    require(a.box >= 1 && (a.box - 1) * a.step < 256, "a box is 1 to 256 each way");
    t.size[1 + i] = a.size, t.stride[1 + i] = a.stride * element;
    t.box[1 + i] = static_cast<u16>(a.box), t.steps[1 + i] = static_cast<u8>(a.step);
  }
  return map_of(t);
}

// ---- barriers ------------------------------------------------------------------------------------------------------
std::string Async::describe(const Barrier& b) {
  return "the barrier at " + std::to_string(b.offset) + " (phase " + std::to_string(b.phase) + ", " +
         std::to_string(b.arrivals) + " of " + std::to_string(b.count) + " arrivals, " + std::to_string(b.bytes) +
         " bytes pending)";
}

Barrier& Async::find(Worker& worker, const void* address, const char* operation) {
  if (!worker.in_shared(address, 8)) worker.fail(std::string(operation) + ": the barrier is not in shared memory");
  Block& own = *worker.self().block;
  return find(worker, own, static_cast<u32>(static_cast<const u8*>(address) - own.shared), operation);
}

Barrier& Async::find(Worker& worker, Block& block, u32 offset, const char* operation) {
  const auto bad = [&](const char* what) {
    worker.fail(std::string(operation) + ": the barrier at " + std::to_string(offset) +
                (&block == worker.self().block ? "" : " of rank " + std::to_string(block.rank)) + what);
  };
  if (offset % 8) bad(" is not 8-byte aligned");
  const u8* address = block.shared + offset;
  const auto found = barriers_.find(address);
  if (found == barriers_.end()) bad(" was not initialized");
  TsanQuiet::read(address, 8);
  u64 value;
  std::memcpy(&value, address, 8);
  if (value != mark(offset)) bad(" was overwritten");
  return found->second;
}

// One that others than its block's threads use.
Barrier& Async::find_published(Worker& worker, u32 rank, u32 offset, const char* operation) {
  Block& block = worker.block_of_rank(rank);
  if (block.finished == worker.launch().threads)
    worker.fail(std::string(operation) + " to rank " + std::to_string(rank) + ", which has exited");
  Barrier& barrier = find(worker, block, offset, operation);
  if (!barrier.published)
    worker.fail(std::string(operation) + ": no barrier_init_fence after the init of " + describe(barrier));
  return barrier;
}

void Async::init(Worker& worker, const void* address, u32 count) {
  Block& own = *worker.self().block;
  if (!worker.in_shared(address, 8)) worker.fail("barrier_init: the barrier is not in shared memory");
  if (!aligned(address, 8)) worker.fail("barrier_init: the barrier is not 8-byte aligned");
  if (count < 1 || count > kMaxBytes) worker.fail("barrier_init for " + std::to_string(count) + " arrivals");
  const auto offset = static_cast<u32>(static_cast<const u8*>(address) - own.shared);
  const auto [place, fresh] = barriers_.try_emplace(own.shared + offset);
  if (!fresh) worker.fail("barrier_init: the barrier at " + std::to_string(offset) + " is initialized already");
  Barrier& barrier = place->second;
  barrier.block = &own;
  barrier.offset = offset;
  barrier.count = count;
  barrier.initializer = worker.self().index;
  const u64 value = mark(offset);
  TsanQuiet::write(own.shared + offset, 8);
  std::memcpy(own.shared + offset, &value, 8);
}

void Async::publish(Worker& worker) {
  for (auto& [address, barrier] : barriers_)
    if (barrier.block == worker.self().block && barrier.initializer == worker.self().index) barrier.published = true;
}

void Async::arrive(Worker& worker, const void* address, u32 bytes) {
  Barrier& barrier = find(worker, address, bytes ? "barrier_expect" : "barrier_arrive");
  if (bytes > kMaxBytes || barrier.bytes + bytes > kMaxBytes)
    worker.fail("barrier_expect: too many bytes for one phase of " + describe(barrier));
  arrive(worker, barrier, bytes);
}

void Async::arrive_remote(Worker& worker, const void* address, u32 rank) {
  if (!worker.in_shared(address, 8)) worker.fail("barrier_arrive_remote: the barrier is not in shared memory");
  if (rank >= worker.launch().cluster) worker.fail("barrier_arrive_remote to rank " + std::to_string(rank));
  const auto offset = static_cast<u32>(static_cast<const u8*>(address) - worker.self().block->shared);
  arrive(worker, find_published(worker, rank, offset, "barrier_arrive_remote"), 0);
}

void Async::arrive(Worker& worker, Barrier& barrier, u32 bytes) {
  tsan_release(&barrier);
  if (barrier.arrivals == barrier.count) worker.fail("one arrival too many at " + describe(barrier));
  barrier.bytes += bytes;
  ++barrier.arrivals;
  if (barrier.arrivals == barrier.count && barrier.bytes < 0)
    worker.fail("more bytes have arrived than expected at " + describe(barrier));
  complete(worker, barrier);
}

void Async::complete(Worker& worker, Barrier& barrier) {
  if (barrier.arrivals != barrier.count || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.arrivals = 0;
  worker.wake(*barrier.block, Wait::barrier, &barrier);
}

Barrier& Async::waited_for(Worker& worker, const void* address, u32 parity) {
  if (parity > 1) worker.fail("barrier_wait for parity " + std::to_string(parity));
  return find(worker, address, "barrier_wait");
}

// ---- copies --------------------------------------------------------------------------------------------------------
std::vector<u8>& Async::view(const Block& block) {
  auto& bytes = views_[&block];
  if (bytes.size() != shared_bytes_) {
    bytes.resize(shared_bytes_);
    poison(bytes.data(), shared_bytes_);
  }
  return bytes;
}

void Async::write(const Block& block, u32 offset, const void* from, u32 bytes) {
  u8* const seen = view(block).data() + offset;
  if (from)
    std::memcpy(seen, from, bytes);
  else
    poison(seen, bytes);
  std::memcpy(block.shared + offset, seen, bytes);
}

void Async::fence(Worker& worker) {
  const Block& own = *worker.self().block;
  std::memcpy(view(own).data(), own.shared, shared_bytes_);
}

bool Async::visible(const Block& block, u32 offset, u32 bytes) {
  return std::memcmp(view(block).data() + offset, block.shared + offset, bytes) == 0;
}

void Async::load(Worker& worker, void* to, const void* from, u32 bytes, const void* barrier, u32 mask) {
  if (bytes == 0 || bytes % 16 || bytes > kMaxBytes) worker.fail("bulk_load of " + std::to_string(bytes) + " bytes");
  if (!aligned(from, 16)) worker.fail("bulk_load from a misaligned address");
  if (!worker.in_shared(to, bytes)) worker.fail("bulk_load to an address that is not in shared memory");
  if (!aligned(to, 16)) worker.fail("bulk_load to a misaligned address");
  Transfer transfer;
  transfer.what = Transfer::What::bulk;
  transfer.from = static_cast<const u8*>(from);
  transfer.bytes = bytes;
  TsanQuiet::read(from, bytes);
  issue(worker, transfer, to, barrier, mask);
}

void Async::load(Worker& worker, void* to, const TensorMap* map, const i32* at, u32 rank, const void* barrier,
                 u32 mask) {
  if (!aligned(map, 64)) worker.fail("tensor_load: the map is not 64-byte aligned");
  const Tensor& tensor = *reinterpret_cast<const Tensor*>(map);
  if (tensor.mark != kMapMark) worker.fail("tensor_load: not a map that emu::tensor_map made");
  if (tensor.rank != rank) worker.fail("tensor_load of another rank than the map's");
  Transfer transfer;
  transfer.what = Transfer::What::tensor;
  transfer.box = &tensor;
  transfer.bytes = tensor.bytes();
  std::copy_n(at, rank, transfer.at);
  const u32 touched = tensor.swizzle ? (transfer.bytes + 127) / 128 * 128 : transfer.bytes;
  if (!worker.in_shared(to, touched)) worker.fail("tensor_load to an address that is not in shared memory");
  if (!aligned(to, 128)) worker.fail("tensor_load to an address that is not 128-byte aligned");
  transfer.offset = static_cast<u32>(static_cast<const u8*>(to) - worker.self().block->shared);
  for_chunks(transfer, [](u32, const u8* from) {
    if (from) TsanQuiet::read(from, 16);
  });
  issue(worker, transfer, to, barrier, mask);
}

void Async::store(Worker& worker, void* to, u32 value, const void* barrier, u32 rank) {
  if (!worker.in_shared(to, 4)) worker.fail("store_cluster_async to an address that is not in shared memory");
  if (!aligned(to, 4)) worker.fail("store_cluster_async to a misaligned address");
  if (rank >= worker.launch().cluster) worker.fail("store_cluster_async to rank " + std::to_string(rank));
  Transfer transfer;
  transfer.what = Transfer::What::word;
  transfer.bytes = 4;
  transfer.value = value;
  issue(worker, transfer, to, barrier, 1u << rank);
}

void Async::issue(Worker& worker, Transfer transfer, const void* to, const void* barrier, u32 mask) {
  const char* const operation = name(transfer.what);
  const u32 cluster = worker.launch().cluster;
  const Block& own = *worker.self().block;
  if (mask >> cluster) worker.fail(std::string(operation) + " to blocks that the cluster does not have");
  if (!mask) mask = 1u << own.rank;
  if (!worker.in_shared(barrier, 8)) worker.fail(std::string(operation) + ": the barrier is not in shared memory");
  const auto barrier_offset = static_cast<u32>(static_cast<const u8*>(barrier) - own.shared);
  transfer.offset = static_cast<u32>(static_cast<const u8*>(to) - own.shared);
  transfer.issuer = &own;
  transfer.thread = worker.self().index;
  for (u32 rank = 0; rank < cluster; ++rank) {
    if (!(mask >> rank & 1)) continue;
    transfer.barrier = &find_published(worker, rank, barrier_offset, operation);
    Block& block = worker.block_of_rank(rank);
    transfer.block = &block;
    const auto claim = [&](u32 offset, u32 bytes) {
      TsanQuiet::write(block.shared + offset, bytes);
      write(block, offset, nullptr, bytes);
    };
    if (transfer.what == Transfer::What::tensor)
      for_chunks(transfer, [&](u32 offset, const u8*) { claim(offset, 16); });
    else
      claim(transfer.offset, transfer.bytes);
    if (transfer.what != Transfer::What::word)
      for (const Transfer& t : transfers_)
        if (t.block == &block && t.offset < transfer.offset + transfer.bytes && transfer.offset < t.offset + t.bytes)
          worker.fail(std::string(operation) + " over a " + issued_by(t) + " that is under way");
    tsan_release(transfer.barrier);
    transfers_.push_back(transfer);
  }
}

void Async::deliver(Worker& worker) {
  if (worker.launch().seed) std::swap(transfers_.front(), transfers_[worker.random() % transfers_.size()]);
  const Transfer t = transfers_.front();
  transfers_.pop_front();
  if (t.what == Transfer::What::bulk) write(*t.block, t.offset, t.from, t.bytes);
  if (t.what == Transfer::What::word) write(*t.block, t.offset, &t.value, 4);
  if (t.what == Transfer::What::tensor) {
    static constexpr u8 kZeros[16] = {};
    for_chunks(t, [&](u32 offset, const u8* from) { write(*t.block, offset, from ? from : kZeros, 16); });
  }
  Barrier& barrier = *t.barrier;
  barrier.bytes -= t.bytes;
  if (barrier.bytes < -kMaxBytes || (barrier.bytes < 0 && barrier.arrivals == barrier.count))
    throw Error(issued_by(t) + ": more bytes have arrived than expected at " + describe(barrier));
  complete(worker, barrier);
}

void Async::check_finished(const Block& block) const {
  for (const Transfer& t : transfers_)
    if (t.block == &block)
      throw Error(issued_by(t) + " is under way to rank " + std::to_string(block.rank) + ", which has exited");
  for (const auto& [address, barrier] : barriers_) {
    if (barrier.block != &block) continue;
    if (barrier.bytes) throw Error(place(block) + ": the kernel ends with bytes pending at " + describe(barrier));
    u64 value;
    std::memcpy(&value, address, 8);
    if (value != mark(barrier.offset)) throw Error(place(block) + ": overwritten: " + describe(barrier));
  }
}

void Async::reset(std::size_t shared_bytes) {
  shared_bytes_ = shared_bytes;
  barriers_.clear();
  transfers_.clear();
  views_.clear();
}

}  // namespace tw::emu
