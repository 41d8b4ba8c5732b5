# SPDX-License-Identifier: Apache-2.0
"""What the operators read out of a gemm's text, and the checks of their arguments that every device shares."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from .. import codec
from .._errors import InvalidArgument, Unsupported
from ..problem import Problem

# Formats that are a dtype of PyTorch's: of activations, outputs and biases.
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
FORMATS = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = "float32, float16 or bfloat16"

# Fields of a gemm that the operators do not take: what they would need besides x, w and bias, or decide themselves.
_NOT_TAKEN = ("m", "x_from", "c", "beta", "y_scale", "workspace", "groups", "group_layout")


class Spec:
    """A gemm of any number of rows. Immutable."""

    def __init__(self, text: str) -> None:
        operation, *words = text.split() or [""]
        if operation != "gemm":
            raise InvalidArgument("problem", text, "a gemm")
        given = {word.partition("=")[0] for word in words}
        for name in _NOT_TAKEN:
            if name in given:
                raise InvalidArgument("problem", text, f"a gemm without {name}, which the operator has no argument for")
        problem = Problem(text + " m=1")
        fields = problem.fields
        if fields["y"] not in DTYPES:
            raise Unsupported("y", fields["y"], "f32, f16 or bf16: a dtype that the operator can return")
        self.text = without_rows(problem)
        self.one_row = problem
        self.x, self.w = codec.find(fields["x"]), codec.find(fields["w"])
        self.n, self.k = int(fields["n"]), int(fields["k"])
        self.dtype = DTYPES[fields["y"]]
        self.bias = DTYPES.get(fields.get("bias", ""))
        self.act = fields.get("act")
        self.alpha = float(fields.get("alpha", 1))
        self.divides = fields.get("global") == "div"
        self.packed = fields.get("pack") == "tiles"
        self.streams = {b.name[2:]: b.bytes for b in problem.buffers if b.name.startswith("w.")}
        """Bytes of w's streams in order: of "data", "scales" and "global" those that it has, as tiles if packed."""

    def check(self, x: torch.Tensor, weight: Sequence[torch.Tensor], bias: torch.Tensor | None) -> None:
        """Raises InvalidArgument naming the argument that does not fit. Looks at shapes, types and devices alone."""
        if x.dtype not in FORMATS:
            raise InvalidArgument("x", f"dtype {x.dtype}", FLOATS)
        if x.dim() == 0 or x.shape[-1] != self.k:
            raise InvalidArgument("x", f"shape {tuple(x.shape)}", f"a last dimension of {self.k}, which k is")
        check_streams(weight, self.streams, x.device)
        if (bias is None) != (self.bias is None):
            raise InvalidArgument("bias", "None" if bias is None else "a tensor", "a bias if the problem has one")
        if bias is not None:
            if bias.dtype != self.bias or tuple(bias.shape) != (self.n,):
                what = f"shape {tuple(bias.shape)}, dtype {bias.dtype}"
                raise InvalidArgument("bias", what, f"shape ({self.n},), dtype {self.bias}")
            if bias.device != x.device:
                raise InvalidArgument("bias", f"on {bias.device}", f"on {x.device}, as x is")


def check_streams(weight: Sequence[torch.Tensor], sizes: dict[str, int], device: torch.device | None = None) -> None:
    """sizes: bytes by stream. device: None is the first stream's."""
    if len(weight) != len(sizes):
        raise InvalidArgument("weight", f"{len(weight)} tensors", f"{len(sizes)}: {', '.join(sizes)}")
    where = weight[0].device if device is None else device
    for tensor, (stream, size) in zip(weight, sizes.items()):
        wanted, item = (torch.float32, 4) if stream == "global" else (torch.uint8, 1)
        if tensor.dtype != wanted:
            raise _unfit(stream, f"dtype {tensor.dtype}", f"{wanted}")
        if tensor.numel() * item != size:
            raise _unfit(stream, f"{tensor.numel() * item} bytes", f"{size} bytes")
        if not tensor.is_contiguous():
            raise _unfit(stream, f"strides {tensor.stride()}", "a contiguous tensor")
        if tensor.device != where:
            raise _unfit(stream, f"on {tensor.device}", f"on {where}, as the other arguments are")


def _unfit(stream: str, value: str, allowed: str) -> InvalidArgument:
    return InvalidArgument(f"weight ({stream})", value, allowed)


@functools.lru_cache(maxsize=4096)
def spec(text: str) -> Spec:
    """The gemm of a text without m. Raises what Problem raises."""
    return Spec(text)


def without_rows(problem: Problem) -> str:
    """A gemm's canonical text without m."""
    return " ".join(part for part in str(problem).split(" ") if not part.startswith("m="))


def gemm_text(x: str, w: str, y: str, n: int, k: int, **fields: Any) -> str:
    """The text of a linear layer, of any number of rows. fields: further ones of Problem.gemm(). Weights are constant,
    and a factor of the tensor multiplies unless `global_` says otherwise."""
    if any("global" in codec.find(format).streams for format in (x, w)):
        fields.setdefault("global_", "mul")
    return without_rows(Problem.gemm(x=x, w=w, y=y, m=1, n=n, k=k, weights="constant", **fields))


def stream_sizes(format: codec.Format, rows: int, cols: int) -> dict[str, int]:
    """Bytes of a matrix' streams as the format stores them."""
    return {name: format.stream_bytes(name, rows, cols) for name in codec.STREAMS if name in format.streams}


def by_name(names: Sequence[str] | dict[str, Any], tensors: Sequence[Any]) -> codec.Streams:
    """Streams in order as an operand."""
    given = dict(zip(names, tensors))
    return codec.Streams(*(given.get(name) for name in codec.STREAMS))
