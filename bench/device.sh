#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command on a machine with a device and a Python that carries NVIDIA's wheels: finds their libnvrtc first.
if [ -z "${TILEWRIGHT_NVRTC:-}" ]; then
  for root in $(python3 -c 'import sys; print(" ".join(sys.path))' 2>/dev/null) /usr/local/cuda*/lib64; do
    for file in "$root"/nvidia/cu13/lib/libnvrtc.so.[0-9]* "$root"/nvidia/cuda_nvrtc/lib/libnvrtc.so.[0-9]* "$root"/libnvrtc.so.[0-9]*; do
      [ -f "$file" ] && TILEWRIGHT_NVRTC=$file && break 2
    done
  done
  export TILEWRIGHT_NVRTC
fi
exec "$@"
