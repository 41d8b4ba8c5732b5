# SPDX-License-Identifier: Apache-2.0
"""Writes model.safetensors and model.gguf, byte for byte what the packages safetensors and gguf make of the tensors that
tests/files/writers_test.cpp declares.

    python tests/golden/make_model_files.py        (needs numpy, torch, safetensors, gguf)
"""
import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent


def pattern(count: int, seed: int) -> np.ndarray:
    return ((np.arange(count) * 7 + seed) % 251).astype(np.uint8)


def tensor(dtype: torch.dtype, shape: list, seed: int) -> torch.Tensor:
    count = int(np.prod(shape, dtype=int)) * torch.empty(0, dtype=dtype).element_size()
    whole = torch.from_numpy(pattern(count, seed)) if count else torch.empty(0, dtype=dtype)
    return whole.view(dtype).reshape(shape)


def safetensors_file():
    names = [("z.weight", torch.float32, [3, 5]), ("a.weight", torch.float16, [2, 4]), ("b.weight", torch.bfloat16, [7]),
             ("a.codes", torch.uint8, [5]), ("a.bytes", torch.int8, [3]), ("scales", torch.float8_e4m3fn, [9]),
             ("wide", torch.float8_e5m2, [3]), ("powers", torch.float8_e8m0fnu, [2]), ("fnuz", torch.float8_e4m3fnuz, [3]),
             ("step", torch.int64, []), ("none", torch.int32, [0, 4]), ("words", torch.int32, [2]),
             ("doubles", torch.float64, [1]), ("short \"ä\" \\ \n", torch.int16, [3]), ("flags", torch.uint16, [1])]
    tensors = {name: tensor(dtype, shape, seed) for seed, (name, dtype, shape) in enumerate(names)}
    save_file(tensors, HERE / "model.safetensors", metadata={"format": "pt"})


def gguf_file():
    w = gguf.GGUFWriter(HERE / "model.gguf", "test")
    w.add_uint32("a.number", 7)
    w.add_float32("a.float", 0.5)
    w.add_bool("a.bool", True)
    w.add_string("a.text", "ä")
    w.add_array("a.texts", ["x", "", "yz"])
    types = gguf.GGMLQuantizationType
    w.add_tensor("q.weight", pattern(3 * 34 * 2, 1).reshape(3, 68), raw_dtype=types.Q8_0)
    w.add_tensor("n.weight", pattern(20, 2).view(np.float32), raw_dtype=types.F32)
    w.add_tensor("h", pattern(2 * 2 * 3 * 5, 3).view(np.float16).reshape(2, 3, 5), raw_dtype=types.F16)
    w.add_tensor("k.weight", pattern(144, 4).reshape(1, 144), raw_dtype=types.Q4_K)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


safetensors_file()
gguf_file()
