// SPDX-License-Identifier: Apache-2.0
// What an Observer accumulates, on a device. A tensor takes three launches: its range, the width of bins that follows
// (settle), and the counts. Every sum is of integers and every maximum of keys, so results do not depend on any order.
#pragma once
#include "backends/cuda/atomic.cuh"
#include "backends/cuda/ptx.cuh"
#include "formats/shared/format.cuh"
#include "operations/observe/params.cuh"

namespace tw::observe {

template <class X>
struct Observe {
  TW_CONSTANTS(int, kThreads = observe::kThreads, kSharedBytes = observe::kSharedBytes);

  TW_MEMBER static void run(const Args& a, const Shape& s) {
    if (a.step == Step::range)
      range(a, s);
    else if (a.step == Step::settle)
      settle(s);
    else if (a.step == Step::count)
      count(a, s);
    else
      end_batch(s);
  }

 private:
  // f(v, index) of this thread's elements.
  template <class F>
  TW_MEMBER static void each(const Args& a, F f) {
    const u8* const x = static_cast<const u8*>(a.x);
    const i64 step = static_cast<i64>(grid_x()) * kThreads;
    TW_UNROLL_BY(4)
    for (i64 i = static_cast<i64>(block_x()) * kThreads + thread_x(); i < a.elements; i += step)
      f(X::decode(x + i * X::kDataBytes, nullptr, 1.0f, 0), a.first + i);
  }
  TW_MEMBER static bool infinite(float v) { return (bits_as<u32>(v) & 0x7fffffffu) == 0x7f800000u; }
  TW_MEMBER static void raise(u32* p, u32 v) {
    if (load_relaxed(p) < v) max_global(p, v);
  }

  TW_MEMBER static void range(const Args& a, const Shape& s) {
    u32 least = 0, most = 0, nans = 0;
    each(a, [&](float v, i64 i) {
      if (infinite(v)) {  // the first one, with its sign
        max_global(s.infinite, ~(2 * static_cast<u64>(i) + (v < 0 ? 1 : 0)));
      } else if (s.channels == 1) {
        if (is_nan(v))
          ++nans;
        else
          least = max2(least, ~key(v)), most = max2(most, key(v));
      } else {
        Channel& c = s.state[s.channel(i, a.inner)];
        if (is_nan(v))
          sum_global(&c.nans, 1);
        else
          raise(&c.batch_least, ~key(v)), raise(&c.batch_most, key(v));
      }
    });
    if (s.channels > 1) return;
    TW_UNROLL for (int mask = 16; mask > 0; mask /= 2) {
      least = max2(least, shuffle_xor(least, mask));
      most = max2(most, shuffle_xor(most, mask));
      nans += shuffle_xor(nans, mask);
    }
    if (thread_x() % 32) return;
    raise(&s.state->batch_least, least), raise(&s.state->batch_most, most);
    if (nans) sum_global(&s.state->nans, nans);
  }

  // Block channel: the range of all, and bins as wide as it wants.
  TW_MEMBER static void settle(const Shape& s) {
    Channel& c = s.state[block_x()];
    const u32 least = max2(c.least, c.batch_least), most = max2(c.most, c.batch_most);
    const bool had = c.most != 0;
    const i32 before = c.exponent;
    if (most == 0) return;
    const i32 exponent = exponent_for(max2(abs_f(value(~least)), abs_f(value(most))), s.log2_bins);
    sync_block();
    if (thread_x() == 0) {
      c.least = least, c.most = most;
      if (s.bins) c.exponent = max2(before, exponent);
    }
    if (!s.bins || !had || exponent <= before) return;
    for (int sign = 0; sign < 2; ++sign)
      coarsen(s.counts + (2 * static_cast<i64>(block_x()) + sign) * s.bins, s.bins, s.log2_bins, exponent - before);
  }
  // Joins runs of 2^by bins. What a thread writes lies in front of what later turns read.
  TW_MEMBER static void coarsen(u64* counts, int bins, int log2_bins, int by) {
    const int joined = by > log2_bins ? bins : 1 << by;
    for (int first = 0; first < bins; first += kThreads) {
      const int at = first + static_cast<int>(thread_x());
      u64 sum = 0;
      if (at < bins / joined)
        for (int i = 0; i < joined; ++i) sum += counts[at * joined + i];
      sync_block();
      if (at < bins) counts[at] = sum;
      sync_block();
    }
  }

  TW_MEMBER static void count(const Args& a, const Shape& s) {
    const auto bin = [&](float v, i32 exponent) {
      const double per_value = bits_as<double>(static_cast<u64>(1023 - exponent) << 52);
      const auto i = static_cast<i64>(mul_rn(static_cast<double>(abs_f(v)), per_value));
      return (v < 0 ? 0 : s.bins) + min2(i, static_cast<i64>(s.bins - 1));
    };
    if (s.channels > 1 || s.bins > kSharedBins) {
      each(a, [&](float v, i64 i) {
        if (is_nan(v) || infinite(v)) return;
        const i64 channel = s.channel(i, a.inner);
        sum_global(s.counts + 2 * channel * s.bins + bin(v, s.state[channel].exponent), 1);
      });
      return;
    }
    u32* const shared = reinterpret_cast<u32*>(dynamic_shared());
    for (int i = static_cast<int>(thread_x()); i < 2 * s.bins; i += kThreads) shared[i] = 0;
    sync_block();
    const i32 exponent = s.state->exponent;
    each(a, [&](float v, i64) {
      if (!is_nan(v) && !infinite(v)) sum_shared(shared + bin(v, exponent), 1);
    });
    sync_block();
    for (int i = static_cast<int>(thread_x()); i < 2 * s.bins; i += kThreads)
      if (shared[i]) sum_global(s.counts + i, shared[i]);
  }

  // A thread for each channel.
  TW_MEMBER static void end_batch(const Shape& s) {
    const i64 channel = static_cast<i64>(block_x()) * kThreads + thread_x();
    if (channel >= s.channels) return;
    Channel& c = s.state[channel];
    if (c.batch_most == 0) return;
    const double batch[2] = {static_cast<double>(value(~c.batch_least)), static_cast<double>(value(c.batch_most))};
    for (int i = 0; i < 2; ++i) {
      if (c.batches == 0) c.first[i] = batch[i];
      c.average[i] = add_rn(mul_rn(s.momentum, c.average[i]), mul_rn(1 - s.momentum, batch[i]));
    }
    ++c.batches;
    c.batch_least = c.batch_most = 0;
  }
};

}  // namespace tw::observe
