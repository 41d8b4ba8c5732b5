# SPDX-License-Identifier: Apache-2.0
"""ggml's own scalar reference encoders and decoders, compiled from a checkout and called through ctypes.

The gguf Python package encodes the legacy formats but not the K-quants, so the C code is the only encoder for Q4_K.
None of that code is part of this repository: it is extracted to a temporary folder, compiled, and loaded.
"""
import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np

COMMIT = "d99724f2b141fed9e1a9f402213506c081433465"  # of ggml-org/ggml
FLAGS = ["-O2", "-ffp-contract=off", "-fPIC", "-shared", "-D_GNU_SOURCE"]  # baseline x86-64: no FMA, no F16C

# format: (encoder, decoder or None, elements per block, bytes per block)
FUNCTIONS = {
    "q4_0": ("quantize_row_q4_0_ref", "dequantize_row_q4_0", 32, 18),
    "q8_0": ("quantize_row_q8_0_ref", "dequantize_row_q8_0", 32, 34),
    "q8_1": ("quantize_row_q8_1_ref", None, 32, 36),
    "q4_k": ("quantize_row_q4_K_ref", "dequantize_row_q4_K", 256, 144),
}


class Ggml:
    """git_dir: the .git folder (or bare repository) of a clone of ggml-org/ggml that contains COMMIT."""

    def __init__(self, git_dir: str):
        self._folder = tempfile.TemporaryDirectory()
        root = Path(self._folder.name)
        archive = subprocess.run(
            ["git", f"--git-dir={git_dir}", "archive", COMMIT, "include", "src"], check=True, capture_output=True)
        subprocess.run(["tar", "x", "-C", str(root)], input=archive.stdout, check=True)
        library = root / "libreference.so"
        # The rest of ggml stays out: its functions are only reached by code that is not used here.
        stubs = "".join(f"void {f}(void) {{ __builtin_trap(); }}\n"
                        for f in ("ggml_abort", "ggml_type_name", "ggml_type_size"))
        # Of the K-quants, which are types 10 to 14.
        stubs += ("#include <stddef.h>\n#include <stdint.h>\nsize_t ggml_row_size(int type, int64_t columns)"
                  " { static const int bytes[] = {84, 110, 144, 176, 210}; return bytes[type - 10] * (columns / 256); }\n")
        (root / "stubs.c").write_text(stubs)
        subprocess.run(["cc", *FLAGS, f"-I{root}/include", f"-I{root}/src", "-o", str(library),
                        str(root / "src/ggml-quants.c"), str(root / "stubs.c"), "-lm"],
                       check=True)
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)
        # What its searches of lists of vectors look up: IQ3_XXS's, IQ3_S's, and those of the types with these numbers.
        self._library.iq3xs_init_impl(256), self._library.iq3xs_init_impl(512)
        for number in (16, 17, 19, 22, 29):  # IQ2_XXS, IQ2_XS, IQ1_S, IQ2_S, IQ1_M
            self._library.iq2xs_init_impl(number)

    def encode(self, name: str, values: np.ndarray) -> np.ndarray:
        """values: float32 [rows, cols], cols a multiple of the block. Returns uint8 [rows, bytes per row]."""
        function, _, block, size = FUNCTIONS[name]
        x = np.ascontiguousarray(values, dtype=np.float32)
        rows, cols = x.shape
        assert cols % block == 0
        out = np.zeros((rows, cols // block * size), np.uint8)
        getattr(self._library, function)(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data),
                                         ctypes.c_int64(x.size))
        return out

    def encode_weighted(self, name: str, values: np.ndarray, importance: np.ndarray) -> np.ndarray:
        """encode() with a weight for each column, by quantize_q2_K() and its like."""
        x, weights = np.ascontiguousarray(values, dtype=np.float32), np.ascontiguousarray(importance, dtype=np.float32)
        rows, cols = x.shape
        assert weights.shape == (cols,) and cols % 256 == 0
        out = np.zeros((rows, cols // 256 * FUNCTIONS[name][3]), np.uint8)
        function = getattr(self._library, f"quantize_{name.replace('_k', '_K')}")
        function.restype = ctypes.c_size_t
        pointer = lambda a: ctypes.c_void_p(a.ctypes.data)
        assert function(pointer(x), pointer(out), ctypes.c_int64(rows), ctypes.c_int64(cols), pointer(weights)) == out.size
        return out

    def decode(self, name: str, data: np.ndarray, cols: int) -> np.ndarray:
        """data: what encode() returned. Returns float32 [rows, cols]. Q8_1 has no decoder in ggml: q * d, as Q8_0."""
        _, function, block, size = FUNCTIONS[name]
        rows = data.shape[0]
        if function is None:
            blocks = data.reshape(-1, size)
            d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
            return (blocks[:, 4:].view(np.int8).astype(np.float32) * d).reshape(rows, cols)
        out = np.zeros((rows, cols), np.float32)
        source = np.ascontiguousarray(data)
        getattr(self._library, function)(ctypes.c_void_p(source.ctypes.data), ctypes.c_void_p(out.ctypes.data),
                                         ctypes.c_int64(out.size))
        return out
