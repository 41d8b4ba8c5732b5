#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the hardware's counters say of the kernels of `bench gemm` and of the fastest rival beside each, or of those of `bench quantize`:
# one cold launch of each under Nsight Compute, at the clocks that the chip takes. Choices come from a cache that the same bench with
# --cache FILE has filled before. With --every-m, of any numbers of tokens, from a cache that `bench gemm --every-m --cache FILE` has filled.
#   bench/counters.sh OUT.json [gemm|quantize] --cache FILE [arguments of that bench: --rows, --m, --shapes, --every-m]
# BENCH, NCU: programs to use instead; LOGS: where the profiler's own table goes.
set -eu
[ $# -ge 3 ] || { sed -n '3,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
out=$1
shift
case "$1" in gemm|quantize) what=$1; shift ;; *) what=gemm ;; esac
bench=${BENCH:-build/bin/tilewright_bench}
ncu=${NCU:-$(command -v ncu || true)}
[ -x "$bench" ] || { echo "counters: no $bench; build tilewright_bench, or name it in BENCH" >&2; exit 4; }
[ -n "$ncu" ] || { echo "counters: no ncu; it comes with the CUDA toolkit, or name it in NCU" >&2; exit 4; }
logs=${LOGS:-$(mktemp -d)}
mkdir -p "$logs"
sh bench/device.sh "$ncu" --profile-from-start off --clock-control none --csv --page raw --log-file "$logs/counters.csv" \
  --section SpeedOfLight --section ComputeWorkloadAnalysis --section MemoryWorkloadAnalysis --section InstructionStats \
  --section SchedulerStats --section WarpStateStats --section LaunchStats \
  "$bench" "$what" --profile --out "$logs/profiled.json" "$@"
python3 bench/counters.py "$logs/profiled.json" "$logs/counters.csv" "$out"
