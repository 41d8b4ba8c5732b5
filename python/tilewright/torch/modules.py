# SPDX-License-Identifier: Apache-2.0
"""Linear layers with quantized weights.

    layer = QuantizedLinear.from_linear(linear, weight="q4_0", activation="q8_1")

Like PyTorch's own, a module may be used from several threads; moving, loading and the first call on a GPU change it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self  # PyTorch needs it, too

from .. import codec
from .._errors import InvalidArgument, must_be
from ..layer import layer_problems
from . import _cpu, _cuda, ops
from ._spec import FLOATS, FORMATS, check_streams, gemm_text, spec, stream_sizes

# By stream.
_BUFFERS = {"data": "data", "scales": "scales", "global": "global_scale"}


class QuantizedWeight(nn.Module):
    """A matrix w[rows, cols] in a format: the `weight` of a QuantizedLinear. Its streams are the buffers `data` and
    `scales`, of uint8, and `global_scale`, one float32; those that the format lacks are None. Converting a module's
    dtype does not change them. They are constants: write them only by load_state_dict(), never in place.

    They may be reordered for the kernels of their device (`tiles`: for which format of x, else None). state_dict(),
    copies, pickles and other devices have them as the format stores them; load_state_dict() compares an entry
    `format`."""

    data: Tensor
    scales: Tensor | None
    global_scale: Tensor | None

    def __init__(self, format: str, rows: int, cols: int, device: Any = None) -> None:
        """All zero. Raises InvalidArgument if cols is no multiple of the format's block."""
        super().__init__()
        f = codec.find(format, "weight")
        if cols % f.block:
            raise must_be("cols", cols, f"a multiple of {f.block}, {format}'s block")
        self.format, self.rows, self.cols = format, rows, cols
        self.tiles: str | None = None
        for name in _BUFFERS.values():
            self.register_buffer(name, None)
        self._put(self._blank(torch.zeros, device))

    @classmethod
    def from_float(cls, values: Tensor, format: str, encoder: str | None = None) -> QuantizedWeight:
        """Encodes values [rows, cols] of any float dtype, on their device."""
        if values.dim() != 2:
            raise InvalidArgument("weight", f"shape {tuple(values.shape)}", "must have two dimensions, [out, in]")
        if not values.is_floating_point():
            raise must_be("weight", f"dtype {values.dtype}", "floats")
        given = values.detach()
        given = given if given.dtype in FORMATS else given.float()
        return cls.from_streams(ops.quantize(given, format, encoder), format, *values.shape)

    @classmethod
    def from_streams(cls, streams: Sequence[Tensor], format: str, rows: int, cols: int) -> QuantizedWeight:
        """Takes streams as the format stores them, without a copy where they are contiguous."""
        f = codec.find(format)
        sizes = stream_sizes(f, rows, cols)
        flat = [s.contiguous().reshape(-1) for s in streams]
        flat = [s if name == "global" else s.view(torch.uint8) for s, name in zip(flat, sizes)] + flat[len(sizes) :]
        check_streams(flat, sizes)
        weight = cls(format, rows, cols, device="meta")
        weight._put(weight._shaped(s.detach() for s in flat))
        return weight

    # ---- what it is

    @property
    def streams(self) -> list[Tensor]:
        """Those that exist, in order, as operators take them."""
        return [s for s in self._buffers.values() if s is not None]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.rows, self.cols))

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return self.rows * self.cols

    @property
    def dtype(self) -> torch.dtype:
        """The memory's, as for other quantized weights, lest it be taken for floats."""
        return self.data.dtype

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def requires_grad(self) -> bool:
        return False

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in self.streams)

    def stored(self) -> list[Tensor]:
        """The streams as the format stores them, on the same device: the buffers themselves, or copies."""
        if self.tiles is None:
            return self.streams
        if self.device.type == "meta":
            return list(self._blank(torch.empty, "meta").values())
        return list(self._shaped(ops.unpack(self.streams, self._problem(self.tiles))).values())

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values, [rows, cols]: exact in float32."""
        return ops.dequantize(self.stored(), self.format, self.rows, self.cols, dtype)

    def extra_repr(self) -> str:
        tiles = "" if self.tiles is None else f", tiles for x={self.tiles}"
        return f"{self.format}, {self.rows} x {self.cols}, {self.nbytes} bytes{tiles}"

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises: a PyTorch function was given the weight as a tensor. (nn.TransformerEncoderLayer tests for a tensor
        this way, and then takes its general path, which calls the layer.)"""
        name = getattr(function, "__name__", function)
        raise must_be("weight", f"a QuantizedWeight, passed to {name}", "a tensor: call the layer, or dequantize()")

    # ---- tiles

    def arrange(self, tiles: str | None) -> None:
        """Reorders the streams for kernels with x of this format, or back to how the format stores them (None)."""
        if tiles == self.tiles:
            return
        stored = self.stored()
        self.tiles = None
        self._put(self._shaped(stored))
        if tiles is not None:
            problem = self._problem(tiles)
            packed = ops.pack(stored, problem)
            self.tiles = tiles
            self._put(dict(zip(spec(problem).streams, packed)))

    def _problem(self, x: str) -> str:
        return gemm_text(x, self.format, "f32", self.rows, self.cols, pack=_order_of(self.data))

    # ---- the buffers

    def _put(self, streams: Mapping[str, Tensor]) -> None:
        for stream, name in _BUFFERS.items():
            self._buffers[name] = streams.get(stream)
        self._settle()

    def _settle(self) -> None:
        """Waits until streams are written: problems say weights=constant."""
        if self.data.is_cuda and type(self.data) is Tensor:
            torch.cuda.current_stream(self.data.device).synchronize()

    def _blank(self, make: Callable[..., Tensor], device: Any) -> dict[str, Tensor]:
        """Streams in their stored shape: a row for each row, or group of rows, that has its own items."""
        f = codec.find(self.format)
        out = {}
        for name, size in stream_sizes(f, self.rows, self.cols).items():
            if name == "global":
                out[name] = make(1, dtype=torch.float32, device=device)
            else:
                lines = -(-self.rows // f.streams[name].rows)
                out[name] = make((lines, size // max(lines, 1)), dtype=torch.uint8, device=device)
        return out

    def _shaped(self, streams: Iterable[Tensor]) -> dict[str, Tensor]:
        """Stored streams by name, in _blank()'s shape."""
        blanks = self._blank(torch.empty, "meta")
        return {name: s.reshape(blank.shape) for (name, blank), s in zip(blanks.items(), streams)}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedWeight:
        if self.device.type == "cpu":  # panels are for this device alone
            self.arrange(None)
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():  # only the device may change: .type() and the like would convert them
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        self._settle()
        if self.device.type == "cpu":
            self.arrange(None)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self.tiles is not None:
            stored = self._shaped(self.stored())
            state.update(tiles=None, _buffers={name: stored.get(stream) for stream, name in _BUFFERS.items()})
        return state

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, stream in self._shaped(self.stored()).items():
            destination[prefix + _BUFFERS[name]] = stream
        destination[prefix + "format"] = torch.tensor(list(self._tag().encode()), dtype=torch.uint8)

    def _tag(self) -> str:
        version = codec.find(self.format).layout_version
        return f"{self.format} rows={self.rows} cols={self.cols} layout={version}"

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {key: value for key, value in state_dict.items() if key.startswith(prefix)}
        tag = own.pop(prefix + "format", None)
        if tag is None:
            missing_keys.append(prefix + "format")
        elif (theirs := bytes(tag.tolist()).decode("utf-8", "replace")) != self._tag():
            error_msgs.append(
                f"{prefix.rstrip('.')}: the state dict has {theirs!r}, but this module was made for {self._tag()!r}; "
                "make it with the state dict's format and shape"
            )
            return
        if self.tiles is not None:
            self.tiles = None
            self._put(self._blank(torch.empty, self.device))
        super()._load_from_state_dict(own, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        self._settle()


class QuantizedLinear(nn.Module):
    """y = x w^T + bias with w in a format, for x [..., in_features] of float32, float16 or bfloat16. y has x's dtype;
    under autocast x is first cast, as nn.Linear's is.

    weight: a format of tilewright.formats(). activation: the format to which each call quantizes x ("q8_1", "int8_row",
    "e4m3_row", "f16" ...); None: x is not quantized. accum: "fast" lets FP8 sums stay in the matrix units
    (docs/reference/numerics.md). order: column i of w belongs to column order[i] of x (act-order checkpoints). factors:
    multiply x, a number for each column, before it is quantized (AWQ, SmoothQuant).

    Gradients reach x, straight through its quantization, and the bias; w is a constant. On a GPU the first call for a
    dtype prepares kernels, which may compile for seconds, and reorders w for them. CUDA graph capture refuses that:
    call tilewright.torch.warm() first. On a CPU kernels compute layers with activation="q8_1" or FP8 weights; packed
    copies of w are made on first use and kept, unless the layer's own warm() has reordered w. PyTorch computes other
    layers. With activation=None a call with another dtype reorders w again: then do not replay graphs that hold its
    earlier launches. Raises InvalidArgument or Unsupported for formats that do not fit."""

    defaults: ClassVar[dict[str, Any]] = {"weight": "q4_0", "activation": None}
    """Of from_linear() and the rules of replace_linears()."""
    options: ClassVar[tuple[str, ...]] = ("weight", "activation", "encoder", "accum")

    bias: nn.Parameter | None
    order: Tensor | None
    factors: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        weight: str = "q4_0",
        activation: str | None = None,
        accum: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Weights and bias are zero: load_state_dict(), or use from_linear(). dtype: the bias's, and x's for warm()."""
        super().__init__()
        dtype = torch.get_default_dtype() if dtype is None else dtype
        values = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None
        self._set(QuantizedWeight(weight, out_features, in_features, device), values, activation, accum, dtype, None)

    def _set(
        self,
        weight: QuantizedWeight,
        bias: nn.Parameter | None,
        activation: str | None,
        accum: str | None,
        dtype: torch.dtype,
        order: Tensor | None,
        factors: Tensor | None = None,
    ) -> None:
        if dtype not in FORMATS:
            raise must_be("dtype", f"{dtype}", FLOATS)
        if activation is not None:
            codec.find(activation, "activation")
        self.in_features, self.out_features = weight.cols, weight.rows
        self.activation, self.accum, self.dtype = activation, accum, dtype
        self.weight = weight
        self.register_parameter("bias", bias)
        self.register_buffer("order", order)
        self.register_buffer("factors", factors)
        # Formed here, since torch.compile follows forward(): by dtype and whether w is in tiles.
        self._texts = {(kind, False): self._text(kind) for kind in FORMATS}

    def _text(self, dtype: torch.dtype, **fields: Any) -> str:
        y = FORMATS[dtype]
        bias = None if self.bias is None else y
        x = self.activation or y
        n, k = self.out_features, self.in_features
        return gemm_text(x, self.weight.format, y, n, k, bias=bias, accum=self.accum, **fields)

    @classmethod
    def from_weight(
        cls,
        weight: QuantizedWeight,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        accum: str | None = None,
        order: Tensor | None = None,
        factors: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """A layer around a weight, which several layers may share. order: [in_features] of integers, or None; factors:
        as many floats, or None. dtype: None is the bias's, or the default."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        if bias is not None:
            if tuple(bias.shape) != (weight.rows,) or not bias.is_floating_point():
                raise InvalidArgument(
                    "bias", f"shape {tuple(bias.shape)}, dtype {bias.dtype}", f"must have {weight.rows} floats"
                )
            bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias.detach())
        if dtype is None:
            given = bias.dtype if bias is not None else torch.get_default_dtype()
            dtype = given if given in FORMATS else torch.float32
        if order is not None:
            if not _permutes(order, weight.cols):
                raise must_be("order", f"shape {tuple(order.shape)}", f"each of 0 to {weight.cols - 1} once")
            order = order.to(weight.device, torch.int32)
        if factors is not None:
            if factors.numel() != weight.cols or not factors.is_floating_point() or not factors.isfinite().all():
                what = f"shape {tuple(factors.shape)}, dtype {factors.dtype}"
                raise InvalidArgument("factors", what, f"must have {weight.cols} finite floats")
            factors = factors.detach().reshape(-1).to(weight.device, torch.float32)
        layer._set(weight, bias, activation, accum, dtype, order, factors)
        return layer

    @classmethod
    def from_float(
        cls,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        format: str = "q4_0",
        activation: str | None = None,
        encoder: str | None = None,
        accum: str | None = None,
    ) -> Self:
        """Encodes weight [out_features, in_features] of floats, on its device, by one of the format's encoders. Keeps
        the bias; a Parameter stays the same one."""
        dtype = weight.dtype if weight.dtype in FORMATS else None
        quantized = QuantizedWeight.from_float(weight, format, encoder)
        return cls.from_weight(quantized, bias, activation=activation, accum=accum, dtype=dtype)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        weight: str = "q4_0",
        activation: str | None = None,
        encoder: str | None = None,
        accum: str | None = None,
    ) -> Self:
        """The layer of an nn.Linear."""
        fields = {"activation": activation, "encoder": encoder, "accum": accum}
        return cls.from_float(linear.weight, linear.bias, format=weight, **fields).train(linear.training)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight's values [out_features, in_features], its columns in x's order, without x's factors."""
        values = self.weight.dequantize(dtype)
        if self.order is None:
            return values
        return values[:, self.order.long().argsort()]

    def to_linear(self, dtype: torch.dtype | None = None) -> nn.Linear:
        """An nn.Linear with the weight's values. dtype: None is the layer's own."""
        dtype = self.dtype if dtype is None else dtype
        device = self.weight.device
        out = nn.Linear(self.in_features, self.out_features, self.bias is not None, device=device, dtype=dtype)
        with torch.no_grad():
            out.weight.copy_(self.dequantize() if self.factors is None else self.dequantize() * self.factors)
            if self.bias is not None:
                out.bias.copy_(self.bias)
        return out.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        x = autocasted(x)
        dtype = x.dtype
        if dtype not in FORMATS:
            raise must_be("x", f"dtype {dtype}", FLOATS)
        # From nn.Module's dictionaries: its attributes take a microsecond each.
        factors: Tensor | None = self._buffers["factors"]
        if factors is not None:
            if x.shape[-1] != self.in_features:
                raise InvalidArgument(
                    "x", f"shape {tuple(x.shape)}", f"must have a last dimension of {self.in_features}"
                )
            x = (x * factors).to(dtype)
        order: Tensor | None = self._buffers["order"]
        if order is not None:
            if x.shape[-1] != self.in_features:  # else a gather would hide it
                raise InvalidArgument(
                    "x", f"shape {tuple(x.shape)}", f"must have a last dimension of {self.in_features}"
                )
            x = x.index_select(-1, order)
        weight: Any = self._modules["weight"]
        wanted = self.activation or FORMATS[dtype]
        moves = x.is_cuda or _cpu.has(x)
        if moves and (weight.tiles != wanted or (dtype, True) not in self._texts):
            if not torch.compiler.is_compiling() and type(x) in (Tensor, nn.Parameter):
                self.arrange(dtype)
        tiles = weight.tiles
        if tiles is not None and tiles != wanted:  # compiled, or with fake tensors: in eager mode it is arranged
            raise must_be(
                "x", f"dtype {dtype}", f"one that w is arranged for (tiles for x={tiles}): warm(model, dtype=...)"
            )
        parameters = self._parameters
        bias: Tensor | None = parameters["bias"] if "bias" in parameters else self.bias  # else it is parametrized
        if bias is not None and bias.dtype != dtype:
            bias = bias.to(dtype)
        return ops.linear(x, weight.streams, bias, self._texts[dtype, tiles is not None])

    def arrange(self, dtype: torch.dtype) -> None:
        """Reorders w for the kernels of its device for x of a dtype, if needed. (forward() does in eager mode.) Raises
        WouldTune if it is needed during the capture of a CUDA graph."""
        weight, text = self.weight, self._texts[dtype, False]
        if (weight.tiles == self._x(dtype) and (dtype, True) in self._texts) or weight.device.type == "meta":
            return
        if _cpu.has(weight.data):
            takes = _cpu.plan(text, dtype) is not None
        else:
            takes = _takes_tiles(text, _cuda.index_of(weight.data))
        tiles = self._x(dtype) if takes else None
        if tiles is not None:
            for kind in FORMATS:
                if self._x(kind) == tiles:
                    self._texts[kind, True] = self._text(kind, pack=_order_of(weight.data))
        if tiles != weight.tiles:
            if not _cpu.has(weight.data):
                _cuda.refuse_capture(_cuda.index_of(weight.data), text)
            weight.arrange(tiles)

    def warm(self, dtype: torch.dtype | None = None) -> None:
        """Arranges w, and prepares the kernels of its problem for x of a dtype (None: the layer's)."""
        dtype = self.dtype if dtype is None else dtype
        self.arrange(dtype)
        text = self._texts[dtype, self.weight.tiles is not None]
        if _cpu.has(self.weight.data):
            _cpu.plan(text, dtype)
        else:
            _cuda.plan(text, _cuda.index_of(self.weight.data), dtype)

    def cpu_kernel(self, rows: int = 1, dtype: torch.dtype | None = None) -> str | None:
        """The layer's kernel on this machine's CPU for x of this many rows and a dtype (None: the layer's): "cpu_gemv
        tokens=4 panels=1". None: no kernel; PyTorch computes on the decoded weight."""
        dtype = self.dtype if dtype is None else dtype
        plan = _cpu.plan(self._texts[dtype, False], dtype)
        return None if plan is None else plan.layer.kernel().candidate(rows)

    def _x(self, dtype: torch.dtype) -> str:
        return self.activation or FORMATS[dtype]

    def problem(self, dtype: torch.dtype | None = None) -> str:
        """The text of its gemm for x of a dtype (None: the layer's), without m and with w as stored."""
        return self._texts[self.dtype if dtype is None else dtype, False]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        before = self.weight.device.type
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.dtype = float_dtype(fn, self.dtype)
        if self.weight.device.type != before:  # which has another order of w
            self._texts = {key: text for key, text in self._texts.items() if not key[1]}
        return self

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        order = state_dict.get(prefix + "order")
        if order is not None and not _permutes(order, self.in_features):
            error_msgs.append(f"{prefix}order: not each of 0 to {self.in_features - 1} once")
            return
        if order is not None and self.order is None:  # a layer of a checkpoint with act-order
            self.order = torch.empty_like(order, device=self.weight.device)
        factors = state_dict.get(prefix + "factors")
        if factors is not None and self.factors is None:  # as well
            self.factors = torch.empty(self.in_features, dtype=torch.float32, device=self.weight.device)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        what = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        more = "".join(f", {name}={value}" for name in ("activation", "accum") if (value := getattr(self, name)))
        return f"{what}, weight={self.weight.format}{more}{', order' if self.order is not None else ''}" + (
            ", factors" if self.factors is not None else ""
        )


def _order_of(data: Tensor) -> str:
    """What the kernels of its device take instead of w as stored."""
    return "panels" if _cpu.has(data) else "tiles"


def autocasted(x: Tensor) -> Tensor:
    """x, cast as autocast, if on, casts it for PyTorch's own layers."""
    kind = "cuda" if x.is_cuda else "cpu"
    if torch.is_autocast_enabled(kind) and x.is_floating_point() and x.device.type == kind:
        return x.to(torch.get_autocast_dtype(kind))
    return x


def float_dtype(fn: Callable[[Tensor], Tensor], dtype: torch.dtype) -> torch.dtype:
    """A dtype after a module's conversion, if the operators take that."""
    converted = fn(torch.empty(0, dtype=dtype)).dtype
    return converted if converted in FORMATS else dtype


def _permutes(order: Tensor, count: int) -> bool:
    return not order.is_floating_point() and sorted(order.flatten().tolist()) == list(range(count))


@functools.lru_cache(maxsize=4096)
def _takes_tiles(problem: str, index: int) -> bool:
    """Whether a GPU's kernels take packed weights for it at every number of rows."""
    return layer_problems(spec(problem).one_row, _cuda.device(index).arch).main.fields.get("pack") == "tiles"


class W4A8Linear(QuantizedLinear):
    """4-bit weights by 8-bit activations: w in NVFP4 with a factor for the tensor, x quantized to E4M3 with a float
    scale for each row (amax / 448). accum="fast" multiplies at FP8's rate with more than 64 rows, and rounds w's codes
    times their scales to E4M3 (docs/reference/numerics.md)."""

    defaults: ClassVar[dict[str, Any]] = {"weight": "nvfp4", "activation": "e4m3_row"}

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        accum: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, **self.defaults, accum=accum, device=device, dtype=dtype)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        weight: str = "nvfp4",
        activation: str | None = "e4m3_row",
        encoder: str | None = None,
        accum: str | None = None,
    ) -> Self:
        """The layer of an nn.Linear, in these formats unless others are given."""
        return super().from_linear(linear, weight, activation, encoder, accum)
