# SPDX-License-Identifier: Apache-2.0
"""What the operators read from a problem's text, and the argument checks that all devices share."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from .. import _operands, codec
from .._errors import InvalidArgument, Unsupported, must_be
from ..problem import Problem

# Formats that are PyTorch dtypes: for activations, outputs and biases.
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
FORMATS = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = "float32, float16 or bfloat16"

# Gemm fields that the operators do not take: these need more than x, w and bias, or operators decide them.
_NOT_TAKEN = ("m", "x_from", "c", "beta", "y_scale", "workspace", "groups", "group_layout")


class Spec:
    """A gemm of any number of rows. Immutable."""

    def __init__(self, text: str) -> None:
        operation, *words = text.split() or [""]
        if operation != "gemm":
            raise must_be("problem", text, "a gemm")
        given = {word.partition("=")[0] for word in words}
        for name in _NOT_TAKEN:
            if name in given:
                raise must_be("problem", text, f"a gemm without {name}, which the operator has no argument for")
        problem = Problem(text + " m=1")
        fields = problem.fields
        if fields["y"] not in DTYPES:
            raise Unsupported("y", fields["y"], "must be f32, f16 or bf16: a dtype that the operator can return")
        self.text = without_rows(problem)
        self.one_row = problem
        self.x, self.w = codec.find(fields["x"]), codec.find(fields["w"])
        self.n, self.k = int(fields["n"]), int(fields["k"])
        self.dtype = DTYPES[fields["y"]]
        self.bias = DTYPES.get(fields.get("bias", ""))
        self.act = fields.get("act")
        self.alpha = float(fields.get("alpha", 1))
        self.divides = fields.get("global") == "div"
        self.packed = fields.get("pack") in _operands.PACKED
        self.streams = {b.name[2:]: b.bytes for b in problem.buffers if b.name.startswith("w.")}
        """Bytes of those streams that w has, in order "data", "scales", "global"; of tiles if packed."""
        self.w_fields = [f"w_{name}" for name in self.streams]

    def check(self, x: torch.Tensor, weight: Sequence[torch.Tensor], bias: torch.Tensor | None) -> None:
        """Raises InvalidArgument naming the argument that does not fit. Looks at shapes, types and devices alone."""
        if x.dtype not in FORMATS:
            raise must_be("x", f"dtype {x.dtype}", FLOATS)
        if x.dim() == 0 or x.shape[-1] != self.k:
            raise InvalidArgument("x", f"shape {tuple(x.shape)}", f"must have a last dimension of {self.k}, which k is")
        check_streams(weight, self.streams, x.device)
        _check_vector("bias", bias, self.bias, self.n, x.device)


# Conv fields that the operators do not take: x's shape gives n and in, its strides the layouts.
_NOT_TAKEN_OF_CONV = (
    *("n", "in", "x_layout", "y_layout", "w_layout"),
    *("cache", "pack", "residual", "beta", "y_scale", "workspace"),
)


class ConvSpec:
    """A convolution of any number of images of any extents. Immutable. Its text has one value of `kernel` for each
    axis."""

    def __init__(self, text: str) -> None:
        operation, *words = text.split() or [""]
        if operation != "conv":
            raise must_be("problem", text, "a conv")
        given = dict(word.partition("=")[::2] for word in words)
        for name in _NOT_TAKEN_OF_CONV:
            if name in given:
                raise must_be("problem", text, f"a conv without {name}, which the operator has no argument for")
        self.rank = rank = len(given.get("kernel", "").split("x"))
        self.kernel: list[int] = []
        self.stride: list[int] = []
        self.dilation: list[int] = []
        self.before: list[int] = []
        self.behind: list[int] = []
        try:  # Problem refuses unreadable text below
            self.kernel, self.stride, self.dilation = (
                _per_axis(given.get(name, "1"), rank) for name in ("kernel", "stride", "dilation")
            )
            pads = [pad.partition(":")[::2] for pad in given.get("pad", "0").split("x")]
            self.before = _per_axis("x".join(lo for lo, _ in pads), rank)
            self.behind = _per_axis("x".join(hi or lo for lo, hi in pads), rank)
            extents = [max(s, a + 1, b + 1) for s, a, b in zip(self.spans, self.before, self.behind)]
        except ValueError:
            extents = [1] * rank
        problem = Problem(f"{text} n=1 in={'x'.join(map(str, extents))}")
        fields = problem.fields
        if fields["y"] not in DTYPES:
            raise Unsupported("y", fields["y"], "must be f32, f16 or bf16: a dtype that the operator can return")
        given_modes = fields.get("pad_mode", "zero").split("x") * rank
        modes = {mode for mode, a, b in zip(given_modes, self.before, self.behind) if a or b}
        if len(modes) > 1:
            raise Unsupported("pad_mode", fields["pad_mode"], "must be the same for all axes that have padding")
        self.pad_mode = modes.pop() if modes else "zero"
        self.text = " ".join(part for part in str(problem).split(" ") if not part.startswith(("n=", "in=")))
        self.x, self.w = codec.find(fields["x"]), codec.find(fields["w"])
        self.c, self.k = int(fields["c"]), int(fields["k"])
        self.groups = int(fields.get("groups", 1))
        self.cols = self.c // self.groups * math.prod(self.kernel)
        """Elements of a row of w: the kernel's taps times a group's channels."""
        self.dtype = DTYPES[fields["y"]]
        self.bias = DTYPES.get(fields.get("bias", ""))
        self.act = fields.get("act")
        self.alpha = float(fields.get("alpha", 1))
        self.divides = fields.get("global") == "div"
        self.packed = False
        self.block = int(fields.get("quant_act", "e2m1/0").partition("/")[2])
        self.by_pixel = fields.get("order") == "trsc"
        self.streams = stream_sizes(self.w, self.k, self.cols)
        self.w_fields = [f"w_{name}" for name in self.streams]

    @property
    def spans(self) -> list[int]:
        """Elements of the padded input that an output sees, by axis."""
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation)]

    @property
    def torch_pads(self) -> list[int]:
        """As torch.nn.functional.pad() takes them: last axis first."""
        return [pad for both in reversed(list(zip(self.before, self.behind))) for pad in both]

    def out(self, extents: Sequence[Any]) -> list[Any]:
        """Output extents of input extents, any of which may be symbolic."""
        axes = zip(extents, self.before, self.behind, self.spans, self.stride)
        return [(extent + a + b - span) // step + 1 for extent, a, b, span, step in axes]

    def filters(self, rows: torch.Tensor) -> torch.Tensor:
        """w's rows, one for each output channel, in PyTorch's shape: [k, c / groups, kernel]."""
        return rows.reshape(self.k, *self.kernel, self.c // self.groups).movedim(-1, 1)

    def problem(self, images: int, extents: Sequence[int], last: bool) -> str:
        """The text for x of a shape. last: channels are innermost in x and y, else they are in front of the axes."""
        layouts = "" if last else " x_layout=ncdhw y_layout=ncdhw"
        return f"{self.text} n={images} in={'x'.join(map(str, extents))}{layouts}"

    def check(
        self,
        x: torch.Tensor,
        weight: Sequence[torch.Tensor],
        bias: torch.Tensor | None,
        amax: torch.Tensor | None,
    ) -> None:
        """Raises InvalidArgument naming the argument that does not fit. Looks at shapes, types and devices alone."""
        if x.dtype not in FORMATS:
            raise must_be("x", f"dtype {x.dtype}", FLOATS)
        if x.dim() != self.rank + 2 or x.shape[1] != self.c:
            raise must_be(
                "x", f"shape {tuple(x.shape)}", f"[images, {self.c} channels, {self.rank} axes]: c is {self.c}"
            )
        for extent, a, b, span in zip(x.shape[2:], self.before, self.behind, self.spans):
            if extent + a + b < span or extent == 0:
                raise InvalidArgument(
                    "x",
                    f"shape {tuple(x.shape)}",
                    f"must have axes of at least one output: with padding {span} elements",
                )
            if self.pad_mode == "reflect" and extent <= max(a, b):
                raise InvalidArgument(
                    "x",
                    f"shape {tuple(x.shape)}",
                    f"must have axes longer than what is reflected, {max(a, b)} elements",
                )
        check_streams(weight, self.streams, x.device)
        _check_vector("bias", bias, self.bias, self.k, x.device)
        _check_vector("amax", amax, torch.float32 if self.block else None, 1, x.device)


def _per_axis(text: str, rank: int) -> list[int]:
    values = [int(part) for part in text.split("x")]
    return values * rank if len(values) == 1 else values


def _check_vector(
    name: str, given: torch.Tensor | None, dtype: torch.dtype | None, count: int, device: torch.device
) -> None:
    """dtype: None where the problem has no such argument."""
    if (given is None) != (dtype is None):
        what = {
            "bias": "must be given if the problem has one, and only then",
            "amax": "must be given if the problem has quant_act, and only then",
        }[name]
        raise InvalidArgument(name, "None" if given is None else "a tensor", what)
    if given is not None:
        if given.dtype != dtype or tuple(given.shape) != (count,):
            what = f"shape {tuple(given.shape)}, dtype {given.dtype}"
            raise InvalidArgument(name, what, f"must have shape ({count},) and dtype {dtype}")
        if given.device != device:
            raise must_be(name, f"on {given.device}", f"on {device}, as x is")


_BYTES, _FACTOR = (torch.uint8, 1), (torch.float32, 4)


def check_streams(weight: Sequence[torch.Tensor], sizes: dict[str, int], device: torch.device | None = None) -> None:
    """sizes: bytes by stream. device: None is the first stream's."""
    if len(weight) != len(sizes):
        raise InvalidArgument("weight", f"{len(weight)} tensors", f"must have {len(sizes)}: {', '.join(sizes)}")
    where = weight[0].device if device is None else device
    for tensor, (stream, size) in zip(weight, sizes.items()):
        wanted, item = _FACTOR if stream == "global" else _BYTES
        if tensor.dtype is not wanted:
            raise _unfit(stream, f"dtype {tensor.dtype}", f"{wanted}")
        if tensor.numel() * item != size:
            raise _unfit(stream, f"{tensor.numel() * item} bytes", f"{size} bytes")
        if not tensor.is_contiguous():
            raise _unfit(stream, f"strides {tensor.stride()}", "a contiguous tensor")
        if tensor.device != where:
            raise _unfit(stream, f"on {tensor.device}", f"on {where}, as the other arguments are")


def _unfit(stream: str, value: str, allowed: str) -> InvalidArgument:
    return must_be(f"weight ({stream})", value, allowed)


@functools.lru_cache(maxsize=4096)
def spec(text: str) -> Spec:
    """The gemm of a text without m. Raises what Problem raises."""
    return Spec(text)


@functools.lru_cache(maxsize=4096)
def conv_spec(text: str) -> ConvSpec:
    """The conv of a text without n and in. Raises what Problem raises."""
    return ConvSpec(text)


def channels_last(x: torch.Tensor) -> bool:
    """Whether x [images, channels, axes] lies in memory with its channels innermost. False if both orders apply."""
    return not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def without_rows(problem: Problem) -> str:
    """A gemm's canonical text without m."""
    return " ".join(part for part in str(problem).split(" ") if not part.startswith("m="))


def gemm_text(x: str, w: str, y: str, n: int, k: int, **fields: Any) -> str:
    """The text of a linear layer, for any number of rows. fields: others of Problem.gemm(). Weights are constant; a
    tensor's factor multiplies unless `global_` says otherwise."""
    if any("global" in codec.find(format).streams for format in (x, w)):
        fields.setdefault("global_", "mul")
    return without_rows(Problem.gemm(x=x, w=w, y=y, m=1, n=n, k=k, weights="constant", **fields))


def conv_text(x: str, w: str, y: str, c: int, k: int, kernel: Sequence[int], **fields: Any) -> str:
    """The text of a layer, of any number of images and extents. fields: others of a conv; None omits one."""
    if any("global" in codec.find(format).streams for format in (x, w)):
        fields.setdefault("global_", "mul")
    given = {"x": x, "w": w, "y": y, "c": c, "k": k, "kernel": "x".join(map(str, kernel)), **fields}
    words = [f"{name.rstrip('_')}={value}" for name, value in given.items() if value is not None]
    return conv_spec(" ".join(["conv", *words, "weights=constant"])).text


def stream_sizes(format: codec.Format, rows: int, cols: int) -> dict[str, int]:
    """Bytes of a matrix' streams as the format stores them."""
    return {name: format.stream_bytes(name, rows, cols) for name in codec.STREAMS if name in format.streams}


def by_name(names: Sequence[str] | dict[str, Any], tensors: Sequence[Any]) -> codec.Streams:
    """Ordered streams as an operand."""
    given = dict(zip(names, tensors))
    return codec.Streams(*(given.get(name) for name in codec.STREAMS))
