// SPDX-License-Identifier: Apache-2.0
// What compute capability 9.0 adds (target sm_90a): transaction barriers, bulk and tensor copies, warpgroup matrix
// instructions, register reallocation. One function per instruction, as in backends/cuda/ptx.cuh; host bodies go to
// tw::emu. Sources: PTX ISA 9.0, sections "Asynchronous Warpgroup Level Matrix Instructions", "mbarrier",
// "cp.async.bulk".
#pragma once
#include "backends/cuda/atomic.cuh"
#include "backends/cuda/fragments.cuh"
#include "backends/cuda/ptx.cuh"

namespace tw {

// CUtensorMap: made by the host, read by the copy engine. Passed as a __grid_constant__ kernel parameter.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

// Operands of a warpgroup matrix instruction. Accumulators are float, or int32 for s8.
// What both operands are; e4m3_e5m2: A is E4M3, B is E5M2; tf32: floats, of whose mantissas 10 bits are read.
enum class WgmmaKind { f16, bf16, e4m3, e5m2, e4m3_e5m2, e5m2_e4m3, s8, tf32, b1 };
constexpr bool is_fp8(WgmmaKind kind) { return kind >= WgmmaKind::e4m3 && kind <= WgmmaKind::e5m2_e4m3; }
constexpr bool is_integer(WgmmaKind kind) { return kind == WgmmaKind::s8 || kind == WgmmaKind::b1; }
constexpr int mma_k(WgmmaKind kind) {  // 32 bytes
  return kind == WgmmaKind::b1                               ? 256
         : kind == WgmmaKind::tf32                           ? 8
         : kind == WgmmaKind::f16 || kind == WgmmaKind::bf16 ? 16
                                                             : 32;
}

// L2 eviction priorities of a copy (encodings that createpolicy gives for fractional policies of 1.0).
TW_CONSTANTS(u64, kEvictNormal = 0x1000000000000000ull, kEvictFirst = 0x12f0000000000000ull,
             kEvictLast = 0x14f0000000000000ull);

}  // namespace tw

#if !defined(__CUDACC__)
namespace tw::emu {
void barrier_init(u64* barrier, u32 arrivals);
void barrier_arrive(u64* barrier, u32 transaction_bytes);  // arrive, after expecting that many more bytes
void barrier_arrive_remote(u64* barrier, u32 rank);  // the barrier at the same offset in another block of the cluster
void barrier_init_fence();
void barrier_wait(u64* barrier, u32 parity);
// Copies; bytes are reported to `barrier` when they arrive. mask: blocks of the cluster that get the data, at the same
// offset of their shared memory, and whose barrier at that offset is told; 0: this block.
void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier, u32 mask);
void tensor_load(void* shared, const TensorMap* map, const i32* at, u32 rank, u64* barrier, u32 mask);
void store_async(void* shared, u32 value, u64* barrier,
                 u32 rank);  // as bulk_load: a word, into one block of the cluster
void fence_async();          // this thread's ordinary shared stores, before later async reads
// d[64 x n] (+)= a b^T of a warpgroup, executed in order at commit. a: descriptor, or registers if `a_registers`.
void wgmma_fence();
void wgmma(WgmmaKind kind, int n, u32* d, const u32* a_registers, u64 a, u64 b, bool accumulate);
void wgmma_commit();
void wgmma_wait(int pending);
void sync_named(u32 id, u32 threads);
void arrive_named(u32 id, u32 threads);
void stmatrix(void* row, const u32* in, int count, bool transpose);
void set_registers(int count);
}  // namespace tw::emu
#endif

namespace tw {

#if defined(__CUDACC__)
TW_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
#else
TW_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(static_cast<const u8*>(p) - emu::shared()); }
#endif

// ---- transaction barriers ------------------------------------------------------------------------------------------
TW_DEVICE void barrier_init(u64* b, u32 arrivals) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
#else
  emu::barrier_init(b, arrivals);
#endif
}
// After the inits, before the barrier of the block or cluster that publishes them.
TW_DEVICE void barrier_init_fence() {
#if defined(__CUDACC__)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  emu::barrier_init_fence();
#endif
}
TW_DEVICE void barrier_expect(u64* b, u32 bytes) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
#else
  emu::barrier_arrive(b, bytes);
#endif
}
TW_DEVICE void barrier_arrive(u64* b) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
#else
  emu::barrier_arrive(b, 0);
#endif
}
TW_DEVICE void barrier_arrive_remote(u64* b, u32 rank) {
#if defined(__CUDACC__)
  asm volatile(
      "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(shared_address(b)),
      "r"(rank)
      : "memory");
#else
  emu::barrier_arrive_remote(b, rank);
#endif
}
// Until the phase of that parity has completed.
TW_DEVICE void barrier_wait(u64* b, u32 parity) {
#if defined(__CUDACC__)
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
#else
  emu::barrier_wait(b, parity);
#endif
}
// A place in the shared memory of another block of the cluster: at the offset that `shared` has in this block's.
struct ClusterAddress {
#if defined(__CUDACC__)
  u32 at;
  TW_MEMBER ClusterAddress(const void* shared, u32 rank) {
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(shared)), "r"(rank));
  }
#else
  void* shared;
  u32 rank;
  ClusterAddress(void* shared_, u32 rank_) : shared(shared_), rank(rank_) {}
#endif
};
// Stores a word `bytes` behind a place, and tells a barrier of the same block of four bytes. Whoever waits on that
// barrier sees the word. (Vectors of words would be fewer instructions, but sums that are passed as one can no longer
// stay where matrix instructions want them: C7511.)
TW_DEVICE void store_cluster_async(const ClusterAddress& place, u32 bytes, float v, const ClusterAddress& barrier) {
#if defined(__CUDACC__)
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(place.at + bytes),
               "f"(v), "r"(barrier.at)
               : "memory");
#else
  emu::store_async(static_cast<u8*>(place.shared) + bytes, bits_as<u32>(v), static_cast<u64*>(barrier.shared),
                   place.rank);
#endif
}
TW_DEVICE void store_cluster_async(float* shared, float v, u64* barrier, u32 rank) {
  store_cluster_async(ClusterAddress(shared, rank), 0, v, ClusterAddress(barrier, rank));
}

// ---- bulk copies, global to shared ---------------------------------------------------------------------------------
// `bytes` and both addresses are multiples of 16.
TW_DEVICE void bulk_load(void* shared, const void* p, u32 bytes, u64* barrier, u64 policy) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(shared)),
      "l"(p), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#else
  (void)policy;
  emu::bulk_load(shared, p, bytes, barrier, 0);
#endif
}
// Where a box begins: in a row-major matrix that is cut along its rows into panels of 128 bytes, or in a tensor of five
// axes, innermost first. A box of the matrix is some rows of some panels, and lands panel by panel. A row of a box is
// some elements of the innermost axis, takes 128 bytes and is swizzled. What lies outside of the map arrives as zero.
struct PanelPlace {
  i32 row, panel, inner = 0;  // inner: element of the panel
};
struct TensorPlace {
  i32 inner, at[4];
};
TW_DEVICE void tensor_load(void* shared, const TensorMap* map, const PanelPlace& from, u64* barrier, u64 policy) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%6, "
      "%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(from.row), "r"(from.panel), "r"(shared_address(barrier)), "l"(policy), "r"(from.inner)
      : "memory");
#else
  (void)policy;
  const i32 at[] = {from.inner, from.row, from.panel};
  emu::tensor_load(shared, map, at, 3, barrier, 0);
#endif
}
TW_DEVICE void tensor_load(void* shared, const TensorMap* map, const TensorPlace& from, u64* barrier, u64 policy) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(shared)),
      "l"(map), "r"(from.inner), "r"(from.at[0]), "r"(from.at[1]), "r"(from.at[2]), "r"(from.at[3]),
      "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#else
  (void)policy;
  const i32 at[] = {from.inner, from.at[0], from.at[1], from.at[2], from.at[3]};
  emu::tensor_load(shared, map, at, 5, barrier, 0);
#endif
}
// The same to every block of the cluster in `mask`, at the same offset of its shared memory and telling its barrier.
TW_DEVICE void tensor_load_multicast(void* shared, const TensorMap* map, const PanelPlace& from, u64* barrier, u32 mask,
                                     u64 policy) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_"
      "hint "
      "[%0], [%1, {%7, %2, %3}], [%4], %5, %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(from.row), "r"(from.panel), "r"(shared_address(barrier)), "h"(static_cast<u16>(mask)), "l"(policy),
      "r"(from.inner)
      : "memory");
#else
  (void)policy;
  const i32 at[] = {from.inner, from.row, from.panel};
  emu::tensor_load(shared, map, at, 3, barrier, mask);
#endif
}
TW_DEVICE void tensor_load_multicast(void* shared, const TensorMap* map, const TensorPlace& from, u64* barrier,
                                     u32 mask, u64 policy) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_"
      "hint "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8, %9;" ::"r"(shared_address(shared)),
      "l"(map), "r"(from.inner), "r"(from.at[0]), "r"(from.at[1]), "r"(from.at[2]), "r"(from.at[3]),
      "r"(shared_address(barrier)), "h"(static_cast<u16>(mask)), "l"(policy)
      : "memory");
#else
  (void)policy;
  const i32 at[] = {from.inner, from.at[0], from.at[1], from.at[2], from.at[3]};
  emu::tensor_load(shared, map, at, 5, barrier, mask);
#endif
}
// Into L2 only, where what somebody still writes is seen all the same.
TW_DEVICE void bulk_prefetch(const void* p, u32 bytes) {
#if defined(__CUDACC__)
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#else
  (void)p, (void)bytes;
#endif
}
TW_DEVICE void tensor_prefetch(const TensorMap* map, i32 row, i32 panel) {
#if defined(__CUDACC__)
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%3, %1, %2}];" ::"l"(map), "r"(row), "r"(panel),
               "r"(0)
               : "memory");
#else
  (void)map, (void)row, (void)panel;
#endif
}
TW_DEVICE void prefetch_map(const TensorMap* map) {
#if defined(__CUDACC__)
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#else
  (void)map;
#endif
}
TW_DEVICE void fence_async() {
#if defined(__CUDACC__)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  emu::fence_async();
#endif
}

// What this thread knows of through ordinary accesses to global memory, before later copies from there.
TW_DEVICE void fence_async_global() {
#if defined(__CUDACC__)
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// ---- warpgroup matrix instructions ---------------------------------------------------------------------------------
// Descriptor of a K-major operand in shared memory: rows of 128 bytes, swizzled by the copy engine over 128 bytes,
// eight rows 1024 bytes apart. This is its lower half; the upper one is constant. Adding n moves it by 16 n bytes: to
// another multiple of 1024, or along the rows by 32 bytes, a step of k.
TW_CONSTANTS(u32, kDescriptorHigh = 0x40000040u);
TW_DEVICE u32 wgmma_descriptor(const void* shared) { return ((shared_address(shared) & 0x3ffffu) >> 4) | (1u << 16); }
TW_DEVICE void wgmma_fence() {
#if defined(__CUDACC__)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  emu::wgmma_fence();
#endif
}
TW_DEVICE void wgmma_commit() {
#if defined(__CUDACC__)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  emu::wgmma_commit();
#endif
}
template <int pending>
TW_DEVICE void wgmma_wait() {
#if defined(__CUDACC__)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#else
  emu::wgmma_wait(pending);
#endif
}
// d[64 x N] (+)= a[64 x 32 bytes] b[N x 32 bytes]^T. Thread t of the warpgroup holds rows 16 (t / 32) + t % 32 / 4 (+
// 8) and columns 8 j + 2 (t % 4) (+ 1): d[4 j + 2 h + c] is row half h, column c of the pair. One instruction per
// (kind, N) with that many operands: the host writes the specialization that a kernel needs into its source
// (templates/operations/gemm/cuda/wgmma/instruction.cpp).
//   ss(d, a, b, accumulate)    both operands described
//   rs(d, a, b, accumulate)    a in four registers: {row, k}, {row + 8, k}, {row, k + 16 bytes}, {row + 8, k + 16
//   bytes}
#if defined(__CUDACC__)
template <WgmmaKind kind, int N>
struct Wgmma;
#else
template <WgmmaKind kind, int N>
struct Wgmma {
  using D = select<is_integer(kind), i32, float>;
  static u64 whole(u32 low) { return (static_cast<u64>(kDescriptorHigh) << 32) | low; }
  static void ss(D (&d)[N / 2], u32 a, u32 b, bool accumulate) {
    emu::wgmma(kind, N, reinterpret_cast<u32*>(d), nullptr, whole(a), whole(b), accumulate);
  }
  static void rs(D (&d)[N / 2], const u32 (&a)[4], u32 b, bool accumulate) {
    emu::wgmma(kind, N, reinterpret_cast<u32*>(d), a, 0, whole(b), accumulate);
  }
};
#endif

// A fragment is complete before whatever volatile instruction comes next: else ptxas may compute it between two matrix
// instructions, and then serializes them all (C7513).
TW_DEVICE void pin(u32 (&a)[4]) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
#else
  (void)a;
#endif
}

// A fragment is complete before whatever comes next, for ptxas too, to which pin() says nothing: it would compute what
// is only used after a wait after that wait. So a store that never happens reads it; `never` is false, which the
// compiler must not know.
TW_DEVICE void complete(const u32 (&a)[4], bool never, const void* shared) {
#if defined(__CUDACC__)
  if (never)
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(shared)), "r"(a[0]), "r"(a[1]),
                 "r"(a[2]), "r"(a[3])
                 : "memory");
#else
  (void)a, (void)never, (void)shared;
#endif
}

// All lanes have completed what precedes the last aligned instruction. Only the emulator needs to be told; a real
// synchronization between matrix instructions would serialize them (C7513).
TW_DEVICE void converge_warp() {
#if !defined(__CUDACC__)
  sync_warp();
#endif
}

// ---- the rest ------------------------------------------------------------------------------------------------------
// A value that is equal in all lanes of a warp, made known as such to the compiler, which then keeps what is derived
// from it in uniform registers.
TW_DEVICE int uniform(int v) {
#if defined(__CUDACC__)
  return __shfl_sync(0xffffffffu, v, 0);
#else
  return v;
#endif
}
// The same value, opaque to the compiler: it cannot hoist addresses derived from it out of the loop over tiles, where
// they would take registers from the sums.
TW_DEVICE int opaque(int v) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(v));
#endif
  return v;
}
// Registers per thread of this warpgroup from here on; all its warps take part.
template <int count>
TW_DEVICE void take_registers() {
#if defined(__CUDACC__)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#else
  emu::set_registers(count);
#endif
}
template <int count>
TW_DEVICE void give_registers() {
#if defined(__CUDACC__)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#else
  emu::set_registers(count);
#endif
}
// Barrier `id` (1 to 15) among `threads` threads of the block.
TW_DEVICE void sync_named(u32 id, u32 threads) {
#if defined(__CUDACC__)
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
  emu::sync_named(id, threads);
#endif
}
// The same without waiting: `threads` counts those that wait and those that arrive.
TW_DEVICE void arrive_named(u32 id, u32 threads) {
#if defined(__CUDACC__)
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
  emu::arrive_named(id, threads);
#endif
}
// `count` 8x8 matrices of 16-bit elements, transposed: lane l passes the address of row l % 8 of matrix l / 8.
template <int count>
TW_DEVICE void stmatrix_transposed(void* row, const u32 (&v)[count]) {
  static_assert(count == 1 || count == 2 || count == 4, "one instruction");
#if defined(__CUDACC__)
  const u32 s = shared_address(row);
  if constexpr (count == 1)
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(s), "r"(v[0]) : "memory");
  else if constexpr (count == 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(s), "r"(v[0]), "r"(v[1])
                 : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(s), "r"(v[0]),
                 "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
#else
  emu::stmatrix(row, v, count, true);
#endif
}
// Four, not transposed.
TW_DEVICE void stmatrix_x4(void* row, const u32 (&v)[4]) {
#if defined(__CUDACC__)
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
#else
  emu::stmatrix(row, v, 4, false);
#endif
}

}  // namespace tw
