#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command on a machine with a device and a Python that carries NVIDIA's wheels: finds their libnvrtc and
# libcublasLt and libcudnn first.

# find_library NAME WHEEL: prints the newest NAME.so.N in the first folder that has one.
find_library() {
  for root in $(python3 -c 'import sys; print(" ".join(sys.path))' 2>/dev/null) /usr/local/cuda*/lib64; do
    for version in 14 13 12 9; do
      for file in "$root/nvidia/cu$version/lib/$1.so.$version" "$root/nvidia/$2/lib/$1.so.$version" "$root/$1.so.$version"; do
        [ -f "$file" ] && { echo "$file"; return; }
      done
    done
  done
}

if [ -z "${TILEWRIGHT_NVRTC:-}" ]; then
  TILEWRIGHT_NVRTC=$(find_library libnvrtc cuda_nvrtc)
  export TILEWRIGHT_NVRTC
fi
if [ -z "${TILEWRIGHT_CUBLASLT:-}" ]; then
  TILEWRIGHT_CUBLASLT=$(find_library libcublasLt cublas)
  export TILEWRIGHT_CUBLASLT
fi
if [ -z "${TILEWRIGHT_CUDNN:-}" ]; then
  TILEWRIGHT_CUDNN=$(find_library libcudnn cudnn)
  export TILEWRIGHT_CUDNN
fi
exec "$@"
