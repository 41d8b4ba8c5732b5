#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compute-sanitizer over the GPU suite, one configuration of each family at odd sizes: memcheck, racecheck, initcheck and
# synccheck in turn. Prints each tool's count of errors and keeps its log. Exit code 0: none; 1: errors, or checks failed;
# 4: no compute-sanitizer.
#   bench/sanitize.sh [--only GROUP,...] [--tools TOOL,...]
# GROUP: gemm casts pack wgmma conv amax fake_quant fused_cast training, all of them by default. SUITE, SANITIZER: programs to use instead; LOGS: where logs go.
# racecheck follows ordinary loads and stores of shared memory, not those of the copy engine and the matrix units. Of
# wgmma it reports bulk copies against the loads that an mbarrier orders, which it does not follow, so by default it
# leaves that group out; the emulator orders them, under ThreadSanitizer too.
set -u
cd "$(dirname "$0")/.."

groups=
tools=memcheck,racecheck,initcheck,synccheck
while [ $# -gt 0 ]; do
  case "$1" in
    --only) groups=${2:?groups}; shift 2 ;;
    --tools) tools=${2:?tools}; shift 2 ;;
    *) sed -n '3,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done

suite=${SUITE:-build/bin/tilewright_gpu_suite}
[ -x "$suite" ] || { echo "sanitize: no $suite; build tilewright_gpu_suite, or name it in SUITE" >&2; exit 4; }

find_sanitizer() {
  command -v compute-sanitizer && return
  for file in "${CUDA_PATH:-/none}"/bin/compute-sanitizer /usr/local/cuda*/bin/compute-sanitizer \
              /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
    [ -x "$file" ] && { echo "$file"; return; }
  done
  for root in $(python3 -c 'import sys; print(" ".join(p for p in sys.path if p))' 2>/dev/null); do
    [ -d "$root/nvidia" ] && find "$root/nvidia" -name compute-sanitizer -type f 2>/dev/null
  done | head -1
}
sanitizer=${SANITIZER:-$(find_sanitizer)}
[ -n "$sanitizer" ] || { echo "sanitize: no compute-sanitizer; it comes with the CUDA toolkit, or name it in SANITIZER" >&2; exit 4; }

logs=${LOGS:-$(mktemp -d)}
mkdir -p "$logs"
bad=0
for tool in $(echo "$tools" | tr , ' '); do
  log=$logs/$tool.log
  selected=gemm,casts,pack,wgmma,conv,amax,fake_quant,fused_cast,training
  [ "$tool" = racecheck ] && selected=gemm,casts,pack,conv,amax,fake_quant,fused_cast,training
  # Calls that fail are the library's to notice: it asks drivers for what older ones do not have.
  more=
  [ "$tool" = memcheck ] && more='--report-api-errors no --leak-check no'
  began=$(date +%s)
  sh bench/device.sh "$sanitizer" --tool "$tool" $more --error-exitcode 99 --print-limit 20 \
    "$suite" --one --only "${groups:-$selected}" --verbose >"$log" 2>&1
  status=$?
  # "ERROR SUMMARY: 3 errors", "RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)"
  count=$(sed -n -e 's/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p' \
                 -e 's/.*RACECHECK SUMMARY:.*(\([0-9]*\) error.*/\1/p' "$log" | tail -1)
  checks=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -1)
  echo "$tool: ${count:-?} errors; ${checks:-the suite did not finish}; exit $status, $(($(date +%s) - began)) s; $log"
  if [ "$status" != 0 ] || [ "${count:-1}" != 0 ]; then
    bad=1
    grep -E '^========= |^FAILED' "$log" | head -15
  fi
done
exit $bad
