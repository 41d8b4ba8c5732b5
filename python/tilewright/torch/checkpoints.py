# SPDX-License-Identifier: Apache-2.0
"""Linear layers out of quantized checkpoints: GPTQ (v1 and v2, act-order too), AWQ, compressed-tensors' pack-quantized,
nvfp4-pack-quantized, float-quantized and int-quantized, Model Optimizer's NVFP4 and FP8, state dicts of
QuantizedLinear, in safetensors, and GGUF. Nothing is quantized anew: but for NVFP4 of compressed-tensors, whose factor
is stored as its reciprocal, every weight has exactly the checkpoint's value.

    for name, layer in load_quantized("model/"):         # a folder, a .safetensors file or a .gguf file
        ...
    load_into(model, "model/")                           # in the places that have the same names

A folder's config.json says what the tensors are (quantization_config); without one the tensors' names and shapes do.
Layouts: docs/use/checkpoints.md and include/tilewright/import.h; NVFP4's are Model Optimizer's nvfp4_tensor.py and
compressed-tensors' fp4_quantized.py. Files are untrusted, and checked as docs/use/checkpoints.md says."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import checkpoints, codec
from .._errors import InvalidArgument, IoError, Unsupported
from ..models import Model, ModelTensor, open_model
from .modules import QuantizedLinear, QuantizedWeight

SCHEMES = ("gptq", "gptq_v2", "awq", "compressed_tensors", "nvfp4", "tilewright", "gguf")

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "I64": torch.int64}
_BYTES = {"F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8}
# Suffixes of the tensor that tells where a layer is: the one with the codes, which Model Optimizer calls `weight`; in a
# QuantizedLinear's own state dict the one with its format.
_CODES = (".qweight", ".weight_packed", ".weight.format", ".weight")

Options = Callable[[str], Mapping[str, Any]]

_STREAMS = {"data": "data", "scales": "scales", "global": "global_scale"}
_TAG = re.compile(r"(\w+) rows=(\d{1,10}) cols=(\d{1,10}) layout=(\d{1,6})")


def load_quantized(
    path: str | os.PathLike[str],
    *,
    scheme: str | None = None,
    activation: str | None = None,
    accum: str | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[str, QuantizedLinear]]:
    """The quantized linear layers of a checkpoint, on the CPU, each with its qualified name, one after the other.

    path: a .safetensors or .gguf file, or a folder with safetensors files. scheme: one of SCHEMES, None: as
    config.json and the tensors say (GPTQ's version is "gptq", v1, unless config.json says otherwise). activation,
    accum: as of QuantizedLinear; dtype: of biases and of warm()'s x, None: as stored. Of a GGUF file all matrices in a
    quantized type are layers, the token embedding among them, and names are the file's without ".weight".

    Raises InvalidArgument or Unsupported naming the tensor that is missing, or that no format holds; IoError."""
    if scheme is not None and scheme not in SCHEMES:
        raise InvalidArgument("scheme", repr(scheme), f"None, or one of {', '.join(SCHEMES)}")
    files, config = _files(pathlib.Path(path)), _config(pathlib.Path(path))
    options = {"activation": activation, "accum": accum}
    yield from read_layers(files, scheme or scheme_of(config), lambda name: options, dtype)


def read_layers(
    files: Sequence[pathlib.Path], scheme: str | None, options: Options, dtype: torch.dtype | None
) -> Iterator[tuple[str, QuantizedLinear]]:
    """load_quantized() of files. options: activation and accum of a layer, by its name."""
    models = [open_model(file) for file in files]
    try:
        tensors = {name: model for model in models for name in model}
        reader = _Reader(tensors, scheme, options, dtype)
        yield from reader.layers(".gguf" in {file.suffix for file in files} or scheme == "gguf")
    finally:
        for model in models:
            model.close()


def load_into(
    model: nn.Module, path: str | os.PathLike[str], *, rename: Callable[[str], str | None] | None = None, **options: Any
) -> list[str]:
    """Puts a checkpoint's quantized layers into a model, in place of the modules of the same qualified names, on their
    devices. rename: from the checkpoint's name of a layer to the model's, or None to leave it out. options: of
    load_quantized(). Returns the names of the modules that were replaced.

    Other tensors of the checkpoint (embeddings, norms) are not loaded. Raises InvalidArgument for a layer that the
    model has not, or that has another shape there."""
    replaced = []
    for name, layer in load_quantized(path, **options):
        target = name if rename is None else rename(name)
        if target is None:
            continue
        parent_name, _, child_name = target.rpartition(".")
        try:
            parent, old = model.get_submodule(parent_name), model.get_submodule(target)
        except AttributeError as error:
            raise InvalidArgument(
                "model", target, f"a module of that name: the checkpoint has {name} ({error})"
            ) from None
        shape = tuple(getattr(old, part, None) for part in ("in_features", "out_features"))
        if shape != (layer.in_features, layer.out_features):
            raise InvalidArgument(
                target, f"{type(old).__name__} {shape}", f"a linear layer {layer.in_features} -> {layer.out_features}"
            )
        device = next((t.device for t in (*old.parameters(), *old.buffers())), torch.device("cpu"))
        place = device if device.type != "meta" else torch.device("cpu")
        setattr(parent, child_name, layer.to(place).train(old.training))
        replaced.append(target)
    return replaced


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise IoError("path", str(path), "a folder with *.safetensors files, or a file")
    return found


def _config(path: pathlib.Path) -> dict[str, Any]:
    """What config.json says of the quantization; {} without one."""
    folder = path if path.is_dir() else path.parent
    for file, key in (("config.json", "quantization_config"), ("hf_quant_config.json", "quantization")):
        try:
            content = json.loads((folder / file).read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise IoError("path", str(folder / file), f"readable JSON: {error}") from None
        found = content.get(key) if isinstance(content, dict) else None
        if isinstance(found, dict):
            return found
    return {}


def scheme_of(config: dict[str, Any]) -> str | None:
    method = config.get("quant_method")
    if method == "gptq":
        return "gptq_v2" if config.get("checkpoint_format") == "gptq_v2" else "gptq"
    if method == "awq":
        version = str(config.get("version", "gemm")).lower()
        if version != "gemm":
            raise Unsupported("version", version, "gemm: AutoAWQ's other versions pack differently")
        return "awq"
    return None  # by the tensors


class _Parts(NamedTuple):
    """A checkpoint's names of what import_weights() takes."""

    codes: str
    zeros: str
    scales: str
    g_idx: str


_GPTQ = _Parts("qweight", "qzeros", "scales", "g_idx")
_COMPRESSED = _Parts("weight_packed", "weight_zero_point", "weight_scale", "weight_g_idx")


class _Reader:
    def __init__(
        self, tensors: dict[str, Model], scheme: str | None, options: Options, dtype: torch.dtype | None
    ) -> None:
        self.tensors = tensors
        self.scheme = scheme
        self.options = options
        self.dtype = dtype

    def layers(self, gguf: bool) -> Iterator[tuple[str, QuantizedLinear]]:
        for name, model in self.tensors.items():
            suffix = next((s for s in _CODES if name.endswith(s)), None)
            if suffix is None:
                continue
            layer = name[: -len(suffix)]
            tensor = model[name]
            if gguf:
                if suffix == ".weight" and len(tensor.shape) == 2 and _is_quantized(tensor):
                    yield layer, self._gguf(layer, tensor)
            elif suffix == ".qweight":
                yield layer, self._packed(layer, self._gptq_or_awq(layer, tensor), _GPTQ)
            elif tensor.type == "U8" and f"{layer}.weight_scale" in self.tensors:
                yield layer, self._nvfp4(layer, tensor)
            elif suffix == ".weight" and tensor.type in _BYTES and f"{layer}.weight_scale" in self.tensors:
                yield layer, self._rows(layer, tensor)
            elif suffix == ".weight.format":
                yield layer, self._own(layer)
            elif suffix == ".weight_packed":
                yield layer, self._packed(layer, "compressed_tensors", _COMPRESSED)

    # ---- safetensors

    def _gptq_or_awq(self, layer: str, codes: ModelTensor) -> str:
        """Both call their tensors alike: GPTQ packs along k, AWQ along n."""
        if self.scheme in ("gptq", "gptq_v2", "awq"):
            return self.scheme
        n = self._get(layer, "scales").shape[-1]
        return "awq" if codes.shape[-1] * 8 == n and codes.shape[-1] != n else "gptq"

    def _packed(self, layer: str, packing: str, parts: _Parts) -> QuantizedLinear:
        codes, scales = (self._content(self._get(layer, name)) for name in (parts.codes, parts.scales))
        zeros, g_idx = (self._tensor(layer, name) for name in (parts.zeros, parts.g_idx))
        if packing == "compressed_tensors":
            n, k = self._shape(layer, codes)
            groups = scales.shape[1] if scales.dim() == 2 else 1
        else:
            n, k = scales.shape[-1], codes.shape[0] * (1 if packing == "awq" else 8)
            groups = scales.shape[0]
        if k == 0 or groups == 0 or k % groups:
            raise InvalidArgument(
                f"{layer}.{parts.scales}", f"shape {tuple(scales.shape)}", f"groups that divide k = {k}"
            )
        imported = checkpoints.import_weights(
            packing, codes=codes, scales=scales, zeros=zeros, g_idx=g_idx, n=n, k=k, group=k // groups
        )
        order = None if imported.order is None else torch.as_tensor(imported.order)
        return self._layer(layer, host_weight(imported.weight), order)

    def _shape(self, layer: str, codes: Tensor) -> tuple[int, int]:
        """compressed-tensors' weight_shape, else what the codes have room for."""
        shape = self._tensor(layer, "weight_shape")
        if shape is None:
            return codes.shape[0], 8 * codes.shape[1]
        if shape.numel() != 2:
            raise InvalidArgument(f"{layer}.weight_shape", f"{shape.numel()} numbers", "2: output features, inputs")
        n, k = (int(extent) for extent in shape.reshape(-1))
        return n, k

    def _nvfp4(self, layer: str, codes: ModelTensor) -> QuantizedLinear:
        n, k = codes.shape[0], 2 * codes.shape[-1]
        scales = self._get(layer, "weight_scale")
        if len(codes.shape) != 2 or scales.type != "F8_E4M3" or tuple(scales.shape) != (n, k // 16):
            raise InvalidArgument(
                f"{layer}.weight_scale", f"{scales.type} {tuple(scales.shape)}", f"F8_E4M3 ({n}, {k // 16})"
            )
        # Model Optimizer's factor, or compressed-tensors' reciprocal of it.
        names = [name for name in ("weight_scale_2", "weight_global_scale") if f"{layer}.{name}" in self.tensors]
        if len(names) != 1:
            raise InvalidArgument(layer, "both" if names else "neither", "weight_scale_2 or weight_global_scale")
        factor = self._content(self._get(layer, names[0])).reshape(-1).float()
        if factor.numel() != 1:
            raise Unsupported(f"{layer}.{names[0]}", f"{factor.numel()} factors", "one for the tensor")
        streams = [_bytes(codes), _bytes(scales), factor if names[0] == "weight_scale_2" else 1 / factor]
        return self._layer(layer, QuantizedWeight.from_streams(streams, "nvfp4", n, k))

    def _rows(self, layer: str, codes: ModelTensor) -> QuantizedLinear:
        zeros = self._get(layer, "weight_zero_point") if f"{layer}.weight_zero_point" in self.tensors else None
        if zeros is not None and any(zeros.read()):
            raise Unsupported(zeros.name, "not all zero", "zeros: codes of 8 bits that are symmetric")
        scale = self._content(self._get(layer, "weight_scale"))
        values = _bytes(codes).view(_BYTES[codes.type]).reshape(codes.shape)
        return self._layer(layer, row_weight(values, scale, f"{layer}.weight"))

    def _own(self, layer: str) -> QuantizedLinear:
        tag = bytes(self._get(layer, "weight.format").read()).decode("utf-8", "replace")
        found = _TAG.fullmatch(tag)
        if found is None:
            raise InvalidArgument(f"{layer}.weight.format", repr(tag), "'FORMAT rows=N cols=K layout=VERSION'")
        format, rows, cols = codec.find(found[1]), int(found[2]), int(found[3])
        if int(found[4]) != format.layout_version:
            raise Unsupported(
                f"{layer}.weight.format", tag, f"layout={format.layout_version}, which this version reads"
            )
        streams = [_bytes(self._get(layer, f"weight.{_STREAMS[name]}")) for name in format.streams]
        streams = [s.view(torch.float32) if n == "global" else s for n, s in zip(format.streams, streams)]
        order = self._tensor(layer, "order")
        return self._layer(layer, QuantizedWeight.from_streams(streams, format.name, rows, cols), order)

    # ---- GGUF

    def _gguf(self, layer: str, tensor: ModelTensor) -> QuantizedLinear:
        n, k = tensor.shape
        return self._layer(layer, QuantizedWeight.from_streams([_bytes(tensor)], tensor.format, n, k))

    # ---- tensors

    def _layer(self, layer: str, weight: QuantizedWeight, order: Tensor | None = None) -> QuantizedLinear:
        if f"{layer}.pre_quant_scale" in self.tensors:  # Model Optimizer's of AWQ and SVDQuant
            raise Unsupported(f"{layer}.pre_quant_scale", "a scale of x", "layers without: fold it into the one before")
        bias = self._tensor(layer, "bias")
        if bias is not None and self.dtype is not None:
            bias = bias.to(self.dtype)
        return QuantizedLinear.from_weight(weight, bias, order=order, dtype=self.dtype, **self.options(layer))

    def _get(self, layer: str, part: str) -> ModelTensor:
        name = f"{layer}.{part}"
        if name not in self.tensors:
            raise InvalidArgument(name, "missing", f"a tensor of the layer {layer}")
        return self.tensors[name][name]

    def _tensor(self, layer: str, part: str) -> Tensor | None:
        return self._content(self._get(layer, part)) if f"{layer}.{part}" in self.tensors else None

    def _content(self, tensor: ModelTensor) -> Tensor:
        dtype = _DTYPES.get(tensor.type.upper())  # GGUF's are lower case
        if dtype is None:
            raise Unsupported(tensor.name, tensor.type, f"one of {', '.join(_DTYPES)}")
        return _bytes(tensor).view(dtype).reshape(tensor.shape)


def _bytes(tensor: ModelTensor) -> Tensor:
    if tensor.nbytes == 0:
        raise InvalidArgument(tensor.name, "empty", "a tensor with elements")
    return torch.frombuffer(tensor.read(), dtype=torch.uint8)


def _is_quantized(tensor: ModelTensor) -> bool:
    if not tensor.format:
        raise Unsupported(tensor.name, tensor.type, "a type that a format of the library has")
    return not codec.find(tensor.format).is_elements


def host_weight(encoded: codec.Encoded) -> QuantizedWeight:
    """Of the host's codec, whose memory it takes over."""
    streams = [torch.frombuffer(part, dtype=torch.uint8) for part in encoded.streams if part is not None]
    return QuantizedWeight.from_streams(streams, encoded.format.name, encoded.rows, encoded.cols)


def row_weight(codes: Tensor, scale: Tensor, name: str = "weight") -> QuantizedWeight:
    """codes [n, k] of int8 or float8_e4m3fn under one scale for all, or one for each row, in whatever shape."""
    format = {torch.int8: "int8_row", torch.float8_e4m3fn: "e4m3_row"}.get(codes.dtype)
    if format is None or codes.dim() != 2:
        raise Unsupported(name, f"{codes.dtype} {tuple(codes.shape)}", "a matrix of int8 or float8_e4m3fn")
    n, k = codes.shape
    if (scale.numel() != 1 and tuple(scale.shape) not in ((n,), (n, 1))) or not scale.is_floating_point():
        what = f"{scale.dtype} {tuple(scale.shape)}"
        raise Unsupported(f"{name}_scale", what, f"one float, or one for each of {n} rows")
    rows = scale.detach().float().reshape(-1).expand(n).contiguous()
    return QuantizedWeight.from_streams([codes.detach().view(torch.uint8), rows.view(torch.uint8)], format, n, k)


def group_weight(codes: Tensor, zeros: Tensor, scales: Tensor, name: str = "weight") -> QuantizedWeight:
    """codes [n, k] of 0 to 15, integer zero points of 0 to 15 and scales [n, groups]: (code - zero) scale."""
    n, k = codes.shape
    groups = scales.shape[-1]
    if tuple(scales.shape) != (n, groups) or zeros.shape != scales.shape or groups == 0 or k % groups or k % 8:
        raise Unsupported(name, f"[{n}, {k}] with scales {tuple(scales.shape)}", "k a multiple of 8, in equal groups")
    padded = torch.nn.functional.pad(zeros.cpu().long(), (0, 0, 0, -n % 8), value=8)
    imported = checkpoints.import_weights(
        "compressed_tensors",
        codes=_words(codes.cpu().long().reshape(n, -1, 8)),
        scales=half_scales(scales.detach().cpu(), f"{name}_scale"),
        zeros=_words(padded.reshape(-1, 8, groups).transpose(1, 2)),
        n=n,
        k=k,
        group=k // groups,
    )
    return host_weight(imported.weight)


def _words(nibbles: Tensor) -> Tensor:
    """Eight codes of the last dimension to an int32, the first lowest."""
    return (nibbles << torch.arange(0, 32, 4)).sum(-1).to(torch.int32)  # wraps


def half_scales(scales: Tensor, name: str) -> Tensor:
    """As float16 or bfloat16, whichever holds them all."""
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(scales.to(dtype).float(), scales.float()):
            return scales.to(dtype).contiguous()
    raise Unsupported(name, f"{scales.dtype}", "numbers that float16 or bfloat16 has")
