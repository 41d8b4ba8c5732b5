# SPDX-License-Identifier: Apache-2.0
"""Linear layers from quantized checkpoints: GPTQ (v1 and v2, act-order too; 2, 3, 4 and 8 bits), AWQ,
compressed-tensors' pack-quantized (4 and 8 bits), nvfp4-pack-quantized, mxfp4-pack-quantized, float-quantized and
int-quantized, Model Optimizer's NVFP4, MXFP4, MXFP8, FP8 and INT4 in groups, FP8 in blocks of 128 x 128
(weight_scale_inv), bitsandbytes' NF4, BitNet b1.58, state dicts of QuantizedLinear, in safetensors, and GGUF. Nothing
is requantized: every weight has exactly the checkpoint's value, except with scales="nearest", and in NVFP4 of
compressed-tensors, which stores the factor's reciprocal. Other quantization is refused, naming the tensor or the
method.

    for name, layer in load_quantized("model/"):         # a folder, a .safetensors file or a .gguf file
        ...
    load_into(model, "model/")                           # replaces modules of the same names

A folder's config.json says what the tensors are (quantization_config); without one the tensors' names and shapes do.
Layouts: docs/use/checkpoints.md and include/tilewright/import.h; NVFP4's are Model Optimizer's nvfp4_tensor.py and
compressed-tensors' fp4_quantized.py. Files are untrusted, and checked as docs/use/checkpoints.md says."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import checkpoints, codec
from .._errors import InvalidArgument, IoError, TilewrightError, Unsupported, must_be
from ..models import Model, ModelTensor, open_model
from .modules import QuantizedLinear, QuantizedWeight

SCHEMES = ("gptq", "gptq_v2", "awq", "compressed_tensors", "nvfp4", "tilewright", "gguf")

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "I64": torch.int64}
# Types of tensors that are values.
_FLOATS = ("F64", "F32", "F16", "BF16")
_BYTES = {"F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8}
# Suffixes of the tensor that identifies a layer: its codes, which Model Optimizer calls `weight`; in a
# QuantizedLinear's own state dict, its format.
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
    scales: str = "exact",
) -> Iterator[tuple[str, QuantizedLinear]]:
    """The quantized linear layers of a checkpoint, on the CPU, each with its qualified name, one after the other.

    path: a .safetensors or .gguf file, or a folder with safetensors files. scheme: one of SCHEMES, None: as config.json
    and the tensors say (GPTQ's version is "gptq", v1, unless config.json says otherwise). activation, accum: as of
    QuantizedLinear; dtype: of biases and of warm()'s x, None: as stored. In a GGUF file every matrix of a quantized
    type is a layer, even the token embedding; names are the file's without ".weight".

    scales: formats store group scales as float16. Scales that float16 lacks are refused, or rounded with "nearest",
    which moves a weight by at most 2^-11 of itself.

    Raises InvalidArgument or Unsupported naming the tensor that is missing, or that no format holds; Unsupported where
    there is no quantized layer; IoError."""
    if scheme is not None and scheme not in SCHEMES:
        raise must_be("scheme", repr(scheme), f"None, or one of {', '.join(SCHEMES)}")
    files, config = _files(pathlib.Path(path)), _config(pathlib.Path(path))
    options = {"activation": activation, "accum": accum}
    yield from read_layers(files, scheme or scheme_of(config), lambda name: options, dtype, config, scales)


def read_layers(
    files: Sequence[pathlib.Path],
    scheme: str | None,
    options: Options,
    dtype: torch.dtype | None,
    config: Mapping[str, Any] | None = None,
    scales: str = "exact",
) -> Iterator[tuple[str, QuantizedLinear]]:
    """load_quantized() of files. options: activation and accum of a layer, by its name. config: quantization_config."""
    check_rule(scales)
    models = [open_model(file) for file in files]
    try:
        tensors = {name: model for model in models for name in model}
        reader = _Reader(tensors, scheme, options, dtype, config or {}, scales)
        count = 0
        for count, found in enumerate(reader.layers(".gguf" in {file.suffix for file in files} or scheme == "gguf"), 1):
            yield found
        if not count:
            types = sorted({model[name].type for name, model in tensors.items()})
            what = f"{len(tensors)} tensors of {', '.join(types) or 'no type'}"
            raise Unsupported(
                "path", str(files[0]), f"must be a checkpoint with quantized linear layers: it has {what}"
            )
    finally:
        for model in models:
            model.close()


def load_into(
    model: nn.Module, path: str | os.PathLike[str], *, rename: Callable[[str], str | None] | None = None, **options: Any
) -> list[str]:
    """Puts a checkpoint's quantized layers into a model, in place of the modules of the same qualified names, on their
    devices. rename: maps a layer's name in the checkpoint to the model's, or None to omit it. options:
    load_quantized()'s. Returns the names of the modules that were replaced.

    Other tensors of the checkpoint (embeddings, norms) are not loaded, and a module keeps its bias if the checkpoint
    has none. Raises InvalidArgument for a layer that the model lacks or has in another shape."""
    replaced = []
    for name, layer in load_quantized(path, **options):
        target = name if rename is None else rename(name)
        if target is None:
            continue
        parent_name, _, child_name = target.rpartition(".")
        try:
            parent, old = model.get_submodule(parent_name), model.get_submodule(target)
        except AttributeError as error:
            raise must_be("model", target, f"a module of that name: the checkpoint has {name} ({error})") from None
        shape = tuple(getattr(old, part, None) for part in ("in_features", "out_features"))
        if shape != (layer.in_features, layer.out_features):
            raise must_be(
                target, f"{type(old).__name__} {shape}", f"a linear layer {layer.in_features} -> {layer.out_features}"
            )
        kept = getattr(old, "bias", None)
        if layer.bias is None and kept is not None:  # quantization does not change it
            more: dict[str, Any] = {
                "activation": layer.activation,
                "accum": layer.accum,
                "order": layer.order,
                "dtype": layer.dtype,
            }
            more["factors"] = layer.factors
            layer = QuantizedLinear.from_weight(layer.weight, kept.detach().cpu().clone(), **more)
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
        raise IoError("path", str(path), "must be a folder with *.safetensors files, or a file")
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
            raise IoError("path", str(folder / file), f"must be readable JSON: {error}") from None
        found = content.get(key) if isinstance(content, dict) else None
        if isinstance(found, dict):
            return found
    return {}


_METHODS = ("gptq", "awq", "compressed-tensors", "modelopt", "fp8", "bitsandbytes", "bitnet", "tilewright", "gguf")


def scheme_of(config: Mapping[str, Any]) -> str | None:
    """quantization_config's scheme; None: the tensors say. Raises Unsupported for what this version does not read."""
    method = config.get("quant_method")
    if method is not None and method not in _METHODS:
        raise Unsupported("quant_method", str(method), f"must be one of {', '.join(_METHODS)}")
    if config.get("transform_config"):
        raise Unsupported(
            "transform_config", str(config["transform_config"])[:80], "must be none: rotations are not applied"
        )
    if method == "gptq":
        return "gptq_v2" if config.get("checkpoint_format") == "gptq_v2" else "gptq"
    if method == "awq":
        version = str(config.get("version", "gemm")).lower()
        if version != "gemm":
            raise Unsupported("version", version, "must be gemm: AutoAWQ's other versions pack differently")
        if config.get("bits", 4) != 4:
            raise Unsupported("bits", str(config["bits"]), "must be 4 for awq")
        return "awq"
    if method == "fp8" and list(config.get("weight_block_size") or _BLOCK) != list(_BLOCK):
        raise Unsupported(
            "weight_block_size", str(config["weight_block_size"]), "must be [128, 128], as e4m3_b128 has them"
        )
    return None  # by the tensors


class _Parts(NamedTuple):
    """A checkpoint's names for import_weights()'s tensors."""

    codes: str
    zeros: str
    scales: str
    g_idx: str


_BLOCK = (128, 128)  # of e4m3_b128
_GPTQ = _Parts("qweight", "qzeros", "scales", "g_idx")
_COMPRESSED = _Parts("weight_packed", "weight_zero_point", "weight_scale", "weight_g_idx")


class _Reader:
    def __init__(
        self,
        tensors: dict[str, Model],
        scheme: str | None,
        options: Options,
        dtype: torch.dtype | None,
        config: Mapping[str, Any],
        scales: str,
    ) -> None:
        self.tensors = tensors
        self.scheme = scheme
        self.options = options
        self.dtype = dtype
        self.config = config
        self.scales = scales

    def layers(self, gguf: bool) -> Iterator[tuple[str, QuantizedLinear]]:
        for name, model in self.tensors.items():
            suffix = next((s for s in _CODES if name.endswith(s)), None)
            tensor = model[name]
            if suffix is None:
                if not gguf and name.endswith("_blocks") and f"{name[:-7]}_scales" in self.tensors:
                    raise Unsupported(name, "MXFP4 of experts", "is not supported: only linear layers are read")
                continue
            layer = name[: -len(suffix)]
            read = self._gguf if gguf else self._reader(layer, suffix, tensor)
            if read is None or (
                gguf and not (suffix == ".weight" and len(tensor.shape) == 2 and _is_quantized(tensor))
            ):
                continue
            try:
                found = read(layer, tensor)
            except TilewrightError as error:  # from code that does not know the layer
                if error.field.startswith(layer):
                    raise
                raise type(error)(f"{layer}: {error.field}", error.value, error.allowed) from None
            yield layer, found

    def _reader(self, layer: str, suffix: str, tensor: ModelTensor) -> Callable[[str, ModelTensor], Any] | None:
        """What reads this tensor's layer; None: it is no layer, or another tensor identifies it."""

        def has(part: str) -> bool:
            return f"{layer}.{part}" in self.tensors

        if suffix == ".qweight":
            return lambda layer, codes: self._packed(layer, self._gptq_or_awq(layer, codes), _GPTQ)
        if suffix == ".weight.format":
            return lambda layer, _: self._own(layer)
        if suffix == ".weight_packed":
            if tensor.type == "U8":
                return self._fp4
            return lambda layer, _: self._packed(layer, "compressed_tensors", _COMPRESSED)
        if tensor.type in _FLOATS or has("weight.format"):
            return None
        if tensor.type == "U8" and has("weight.absmax"):
            return self._nf4
        if tensor.type == "U8" and self.config.get("quant_method") == "bitnet":
            return self._bitnet
        if tensor.type == "U8" and has("weight_scale"):
            return self._fp4
        if tensor.type == "F8_E4M3" and has("weight_scale_inv"):
            return lambda layer, codes: self._blocks(layer, codes, "weight_scale_inv")
        if tensor.type in _BYTES and has("weight_scale"):
            return self._rows
        if len(tensor.shape) != 2:  # no linear layer's
            return None
        raise Unsupported(
            tensor.name,
            f"{tensor.type} {tuple(tensor.shape)}",
            "must be floats, or codes with scales of gptq, awq, compressed-tensors, modelopt, fp8 or bitsandbytes",
        )

    # ---- safetensors

    def _gptq_or_awq(self, layer: str, codes: ModelTensor) -> str:
        """Both use the same tensor names: GPTQ packs along k, AWQ along n."""
        if self.scheme in ("gptq", "gptq_v2", "awq"):
            return self.scheme
        n = self._get(layer, "scales").shape[-1]
        return "awq" if codes.shape[-1] * 8 == n and codes.shape[-1] != n else "gptq"

    def _packed(self, layer: str, packing: str, parts: _Parts) -> QuantizedLinear:
        codes, scales = (self._content(self._get(layer, name)) for name in (parts.codes, parts.scales))
        zeros, g_idx = (self._tensor(layer, name) for name in (parts.zeros, parts.g_idx))
        if packing == "compressed_tensors":
            n, k, bits = self._shape(layer, codes)
            groups = scales.shape[1] if scales.dim() == 2 else 1
        else:
            n, bits = scales.shape[-1], 4 if packing == "awq" else self._gptq_bits(layer, codes, zeros, scales)
            k = codes.shape[0] * (1 if packing == "awq" else 32) // (1 if packing == "awq" else bits)
            groups = scales.shape[0]
        if k == 0 or groups == 0 or k % groups:
            raise InvalidArgument(
                f"{layer}.{parts.scales}", f"shape {tuple(scales.shape)}", f"must have groups that divide k={k}"
            )
        if packing == "compressed_tensors" and bits == 8:
            return self._layer(layer, self._bytes_of_words(layer, codes, scales, zeros, g_idx, n, k))
        more = {"codes": codes, "zeros": zeros, "g_idx": g_idx, "n": n, "k": k, "group": k // groups, "bits": bits}
        return self._layer(layer, *import_groups(packing, scales, f"{layer}.{parts.scales}", self.scales, **more))

    def _gptq_bits(self, layer: str, codes: Tensor, zeros: Tensor | None, scales: Tensor) -> int:
        """From the packing of zero points, which config.json must not contradict; else from config.json."""
        stated = self.config.get("bits")
        bits = stated or 4
        if zeros is not None and scales.shape[-1]:
            bits = 32 * zeros.shape[-1] // scales.shape[-1]
        own = (stated,) if stated else (2, 3, 4, 8)
        if bits not in own and not self.config.get("dynamic"):  # which has bits by layer
            raise Unsupported(
                f"{layer}: bits", str(bits), f"must be {' or '.join(map(str, own))}, as qzeros and config.json say"
            )
        return bits

    def _bytes_of_words(self, layer: str, codes: Any, scales: Any, zeros: Any, g_idx: Any, n: int, k: int) -> Any:
        """8-bit codes, plus 128, in int32: to int8_row, or to q8_0 if a row has several scales."""
        for part, tensor in (("weight_zero_point", zeros), ("weight_g_idx", g_idx)):
            if tensor is not None and not (part == "weight_g_idx" and (tensor == -1).all()):
                raise Unsupported(f"{layer}.{part}", "8 bits", "must be symmetric codes of columns in order")
        values = (codes.contiguous().view(torch.uint8).reshape(codes.shape[0], -1)[:n, :k] ^ 0x80).view(torch.int8)
        scales = scales.reshape(n, -1)
        if scales.shape[1] == 1:
            return row_weight(values.contiguous(), scales, f"{layer}.weight")
        return q8_0_weight(values, scales, f"{layer}.weight_scale", self.scales)

    def _shape(self, layer: str, codes: Tensor) -> tuple[int, int, int]:
        """compressed-tensors' weight_shape and bits; without a shape, what the codes can hold."""
        shape = self._tensor(layer, "weight_shape")
        stated = {
            (group.get("weights") or {}).get("num_bits")
            for group in (self.config.get("config_groups") or {}).values()
            if isinstance(group, Mapping)
        } - {None}
        if shape is None:
            if len(stated) != 1 and self.config:
                raise must_be(f"{layer}.weight_shape", "missing", "a tensor, or num_bits of config.json")
            bits = int(stated.pop() or 4) if stated else 4
            n, k = codes.shape[0], 32 * codes.shape[1] // max(bits, 1)
        else:
            if shape.numel() != 2:
                raise InvalidArgument(
                    f"{layer}.weight_shape", f"{shape.numel()} numbers", "must have 2: output features, inputs"
                )
            n, k = (int(extent) for extent in shape.reshape(-1))
            words = codes.shape[-1]
            fit = [bits for bits in (4, 8) if -(-k // (32 // bits)) == words]
            bits = fit[0] if fit else 32 * words // max(k, 1)
        if bits not in (4, 8):
            raise Unsupported(f"{layer}: bits", str(bits), "must be 4 or 8 for compressed-tensors' pack-quantized")
        return n, k, bits

    def _fp4(self, layer: str, codes: ModelTensor) -> QuantizedLinear:
        """NVFP4; MXFP4 if scales are powers of two; Model Optimizer's INT4 if they are floats."""
        n, k = codes.shape[0], 2 * codes.shape[-1]
        scales = self._get(layer, "weight_scale")
        if len(codes.shape) == 2 and scales.type in _FLOATS and len(scales.shape) == 2:
            return self._int4(layer, codes, self._content(scales))
        if len(codes.shape) == 2 and scales.type == "U8":
            return self._powers(layer, codes, scales, "mxfp4", n, k)
        if len(codes.shape) != 2 or scales.type != "F8_E4M3" or tuple(scales.shape) != (n, k // 16):
            raise must_be(f"{layer}.weight_scale", f"{scales.type} {tuple(scales.shape)}", f"F8_E4M3 ({n}, {k // 16})")
        # Model Optimizer's factor, or compressed-tensors' reciprocal of it.
        names = [name for name in ("weight_scale_2", "weight_global_scale") if f"{layer}.{name}" in self.tensors]
        if len(names) != 1:
            raise InvalidArgument(
                layer, "both" if names else "neither", "must have either weight_scale_2 or weight_global_scale"
            )
        factor = self._content(self._get(layer, names[0])).reshape(-1).float()
        if factor.numel() != 1:
            raise Unsupported(f"{layer}.{names[0]}", f"{factor.numel()} factors", "must have one for the tensor")
        streams = [_bytes(codes), _bytes(scales), factor if names[0] == "weight_scale_2" else 1 / factor]
        return self._layer(layer, QuantizedWeight.from_streams(streams, "nvfp4", n, k))

    def _int4(self, layer: str, codes: ModelTensor, scales: Tensor) -> QuantizedLinear:
        """Model Optimizer's W4A16_AWQ: rows 2 i and 2 i + 1 share bytes, the first lowest, in two's complement."""
        n, k = 2 * codes.shape[0], codes.shape[1]
        if f"{layer}.weight_scale_2" in self.tensors:
            what = "is not supported: INT4 must not be rounded to FP8 besides"
            raise Unsupported(f"{layer}.weight_scale_2", "INT4 that is rounded to FP8 (W4A8_AWQ)", what)
        if scales.shape[0] != n:
            what = f"shape {tuple(scales.shape)}"
            raise InvalidArgument(f"{layer}.weight_scale", what, f"must have {n} rows, two for each byte")
        packed = _bytes(codes).reshape(-1, 1, k)
        nibbles = torch.cat([packed & 15, packed >> 4], 1).reshape(n, k)
        middle = torch.full(scales.shape, 8)
        return self._layer(layer, group_weight(nibbles ^ 8, middle, scales, f"{layer}.weight_scale", self.scales))

    def _powers(
        self, layer: str, codes: ModelTensor, scales: ModelTensor, format: str, n: int, k: int
    ) -> QuantizedLinear:
        """Blocks of 32 under a power of two each."""
        if tuple(scales.shape) != (n, k // 32):
            raise must_be(f"{layer}.weight_scale", f"shape {tuple(scales.shape)}", f"({n}, {k // 32})")
        return self._layer(layer, QuantizedWeight.from_streams([_bytes(codes), _bytes(scales)], format, n, k))

    def _blocks(self, layer: str, codes: ModelTensor, part: str) -> QuantizedLinear:
        """FP8 under one float for 128 x 128 elements."""
        scales = self._content(self._get(layer, part)).float()
        n, k = codes.shape[0], codes.shape[-1]
        wanted = tuple(-(-extent // block) for extent, block in zip((n, k), _BLOCK))
        if len(codes.shape) != 2 or tuple(scales.shape) != wanted or k % _BLOCK[1]:
            what = f"shape {tuple(scales.shape)} of [{n}, {k}]"
            raise Unsupported(
                f"{layer}.{part}", what, "must have a scale for 128 x 128 elements, and k a multiple of 128"
            )
        return self._layer(layer, QuantizedWeight.from_streams([_bytes(codes), scales], "e4m3_b128", n, k))

    def _nf4(self, layer: str, codes: ModelTensor) -> QuantizedLinear:
        """bitsandbytes' NF4; with double quantization absmax is quantized, too."""
        state = [name for name in self.tensors if name.startswith(f"{layer}.weight.quant_state.")]
        if len(state) != 1 or not state[0].endswith("bitsandbytes__nf4"):
            raise Unsupported(f"{layer}.weight", ", ".join(state) or "no quant_state", "must be nf4 of bitsandbytes")
        try:
            told = json.loads(bytes(self.tensors[state[0]][state[0]].read()))
            n, k = (int(extent) for extent in told["shape"])
            size, nested = int(told["blocksize"]), int(told.get("nested_blocksize", 256))
            offset = float(told.get("nested_offset", 0))
        except (ValueError, KeyError, TypeError) as error:
            raise must_be(state[0], "unreadable", f"bitsandbytes' quant_state: {error!r}") from None
        if size < 64 or size % 64 or k < 64 or k % 64 or n < 1 or nested < 1:
            raise Unsupported(
                f"{layer}.weight", f"[{n}, {k}], blocksize {size}", "must have k and blocksize multiples of 64"
            )
        table = self._tensor(layer, "weight.quant_map")
        if table is not None and not torch.equal(table.reshape(-1).float(), _nf4_table()):
            raise Unsupported(f"{layer}.weight.quant_map", "another table", "must be NF4's table")
        stored = self._get(layer, "weight.absmax")
        if stored.type == "U8":
            outer, inner = (self._needed(layer, f"weight.nested_{part}").float() for part in ("absmax", "quant_map"))
            absmax = inner.reshape(-1)[_bytes(stored).long()]
            absmax = absmax * outer.reshape(-1).repeat_interleave(nested)[: absmax.numel()] + offset
        else:
            absmax = self._content(stored).reshape(-1).float()
        if absmax.numel() != -(-n * k // size):
            raise InvalidArgument(
                f"{layer}.weight.absmax", f"{absmax.numel()} numbers", f"must have {-(-n * k // size)}"
            )
        scales = absmax.repeat_interleave(size // 64)[: n * k // 64]
        return self._layer(layer, QuantizedWeight.from_streams([_bytes(codes), scales], "nf4", n, k))

    def _bitnet(self, layer: str, codes: ModelTensor) -> QuantizedLinear:
        """Four rows a byte: codes -1, 0 and 1, plus 1."""
        scale = self._needed(layer, "weight_scale").float().reshape(-1)
        if len(codes.shape) != 2 or scale.numel() != 1:
            raise must_be(f"{layer}.weight", f"shape {tuple(codes.shape)}", "a matrix under one weight_scale")
        packed = _bytes(codes).reshape(codes.shape)
        rows = torch.cat([packed >> shift & 3 for shift in (0, 2, 4, 6)])
        n, k = rows.shape
        if (rows == 3).any() or k % 4:
            raise must_be(f"{layer}.weight", f"code 3, or {k} columns", "0, 1 or 2, in a multiple of 4 columns")
        data = (rows.reshape(n, -1, 4) << torch.tensor([0, 2, 4, 6], dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
        if self.config.get("linear_class", "bitlinear") == "bitlinear":
            scale = 1 / scale
        return self._layer(
            layer, QuantizedWeight.from_streams([data, scale.expand(n).contiguous()], "ternary_row", n, k)
        )

    def _rows(self, layer: str, codes: ModelTensor) -> QuantizedLinear:
        stored = self._get(layer, "weight_scale")
        if codes.type == "F8_E4M3" and stored.type == "U8":
            return self._powers(layer, codes, stored, "mxfp8", codes.shape[0], codes.shape[-1])
        if codes.type == "F8_E4M3" and len(stored.shape) == 2 and stored.shape[1] > 1:
            return self._blocks(layer, codes, "weight_scale")
        zeros = self._get(layer, "weight_zero_point") if f"{layer}.weight_zero_point" in self.tensors else None
        if zeros is not None and any(zeros.read()):
            raise Unsupported(zeros.name, "not all zero", "must be zeros: codes of 8 bits that are symmetric")
        scale = self._content(stored)
        values = _bytes(codes).view(_BYTES[codes.type]).reshape(codes.shape)
        return self._layer(layer, row_weight(values, scale, f"{layer}.weight"))

    def _own(self, layer: str) -> QuantizedLinear:
        tag = bytes(self._get(layer, "weight.format").read()).decode("utf-8", "replace")
        found = _TAG.fullmatch(tag)
        if found is None:
            raise must_be(f"{layer}.weight.format", repr(tag), "'FORMAT rows=N cols=K layout=VERSION'")
        format, rows, cols = codec.find(found[1]), int(found[2]), int(found[3])
        if int(found[4]) != format.layout_version:
            raise Unsupported(
                f"{layer}.weight.format", tag, f"must be layout={format.layout_version}, which this version reads"
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
        parts = [
            part
            for part in ("svdquant_lora_a", "weight_quantizer._svdquant_lora_a")
            if f"{layer}.{part}" in self.tensors
        ]
        if parts:
            raise Unsupported(
                f"{layer}.{parts[0]}", "a low-rank part", "is not supported: only layers without one are read"
            )
        # From Model Optimizer's AWQ or SmoothQuant, or a QuantizedLinear's own.
        factors = self._tensor(layer, "pre_quant_scale" if f"{layer}.pre_quant_scale" in self.tensors else "factors")
        bias = self._tensor(layer, "bias")
        if bias is not None and self.dtype is not None:
            bias = bias.to(self.dtype)
        more: dict[str, Any] = {"order": order, "factors": factors, "dtype": self.dtype}
        return QuantizedLinear.from_weight(weight, bias, **more, **self.options(layer))

    def _get(self, layer: str, part: str) -> ModelTensor:
        name = f"{layer}.{part}"
        if name not in self.tensors:
            raise must_be(name, "missing", f"a tensor of the layer {layer}")
        return self.tensors[name][name]

    def _tensor(self, layer: str, part: str) -> Tensor | None:
        return self._content(self._get(layer, part)) if f"{layer}.{part}" in self.tensors else None

    def _needed(self, layer: str, part: str) -> Tensor:
        return self._content(self._get(layer, part))

    def _content(self, tensor: ModelTensor) -> Tensor:
        dtype = _DTYPES.get(tensor.type.upper())  # GGUF's are lower case
        if dtype is None:
            raise Unsupported(tensor.name, tensor.type, f"must be one of {', '.join(_DTYPES)}")
        return _bytes(tensor).view(dtype).reshape(tensor.shape)


def _bytes(tensor: ModelTensor) -> Tensor:
    if tensor.nbytes == 0:
        raise must_be(tensor.name, "empty", "a tensor with elements")
    return torch.frombuffer(tensor.read(), dtype=torch.uint8)


@functools.lru_cache(None)
def _nf4_table() -> Tensor:
    """The table, as the format decodes it."""
    codes = torch.arange(16, dtype=torch.uint8)
    data = torch.cat([codes << 4 | codes, torch.zeros(16, dtype=torch.uint8)])
    return torch.as_tensor(codec.decode((data, torch.ones(1).view(torch.uint8)), "nf4", 1, 64)).reshape(-1)[:32:2]


def _is_quantized(tensor: ModelTensor) -> bool:
    if not tensor.format:
        raise Unsupported(tensor.name, tensor.type, "is not supported: no format of the library has this type")
    return not codec.find(tensor.format).is_elements


def host_weight(encoded: codec.Encoded) -> QuantizedWeight:
    """A host matrix as a weight; takes over its memory."""
    streams = [torch.frombuffer(part, dtype=torch.uint8) for part in encoded.streams if part is not None]
    return QuantizedWeight.from_streams(streams, encoded.format.name, encoded.rows, encoded.cols)


def row_weight(codes: Tensor, scale: Tensor, name: str = "weight") -> QuantizedWeight:
    """codes [n, k] of int8 or float8_e4m3fn under one scale, of any shape, or one for each row."""
    format = {torch.int8: "int8_row", torch.float8_e4m3fn: "e4m3_row"}.get(codes.dtype)
    if format is None or codes.dim() != 2:
        raise Unsupported(name, f"{codes.dtype} {tuple(codes.shape)}", "must be a matrix of int8 or float8_e4m3fn")
    n, k = codes.shape
    if (scale.numel() != 1 and tuple(scale.shape) not in ((n,), (n, 1))) or not scale.is_floating_point():
        what = f"{scale.dtype} {tuple(scale.shape)}"
        raise Unsupported(f"{name}_scale", what, f"must have one float, or one for each of {n} rows")
    rows = scale.detach().float().reshape(-1).expand(n).contiguous()
    return QuantizedWeight.from_streams([codes.detach().view(torch.uint8), rows.view(torch.uint8)], format, n, k)


def group_weight(
    codes: Tensor, zeros: Tensor, scales: Tensor, name: str = "weight_scale", rule: str | None = None
) -> QuantizedWeight:
    """codes [n, k] of 0 to 15, integer zero points of 0 to 15 and scales [n, groups]: (code - zero) scale."""
    n, k = codes.shape
    groups = scales.shape[-1]
    if tuple(scales.shape) != (n, groups) or zeros.shape != scales.shape or groups == 0 or k % groups or k % 8:
        raise Unsupported(
            name, f"[{n}, {k}] with scales {tuple(scales.shape)}", "must have k a multiple of 8, in equal groups"
        )
    padded = torch.nn.functional.pad(zeros.cpu().long(), (0, 0, 0, -n % 8), value=8)
    return import_groups(
        "compressed_tensors",
        scales.detach().cpu(),
        name,
        rule,
        codes=_words(codes.cpu().long().reshape(n, -1, 8)),
        zeros=_words(padded.reshape(-1, 8, groups).transpose(1, 2)) if (zeros != 8).any() else None,
        n=n,
        k=k,
        group=k // groups,
    )[0]


def import_groups(
    packing: str, scales: Tensor, name: str, rule: str | None, **tensors: Any
) -> tuple[QuantizedWeight, Tensor | None]:
    """import_weights() of scales that may be float32; and its order. Scales of whole rows stay float32."""
    rows = scales.numel() == tensors["n"] and scales.dtype == torch.float32
    half = torch.ones(scales.shape, dtype=torch.float16) if rows else half_scales(scales, name, rule)
    imported = checkpoints.import_weights(packing, scales=half, **tensors)
    if rows and imported.weight.format.name != "int4_row":
        return import_groups(packing, half_scales(scales, name, rule), name, rule, **tensors)
    weight = host_weight(imported.weight)
    if rows:
        weight.scales = scales.reshape(-1).contiguous().view(torch.uint8).reshape(-1, 4)
    return weight, None if imported.order is None else torch.as_tensor(imported.order)


def q8_0_weight(codes: Tensor, scales: Tensor, name: str = "weight_scale", rule: str | None = None) -> QuantizedWeight:
    """codes [n, k] of int8 under scales [n, groups], each of which serves several blocks of q8_0."""
    n, k = codes.shape
    groups = scales.shape[-1]
    if scales.shape[0] != n or groups == 0 or k % groups or k // groups % 32:
        what = f"8 bits, [{n}, {k}], with scales {tuple(scales.shape)}"
        raise Unsupported(name, what, "must be groups of a multiple of 32, or rows")
    half = half_scales(scales, name, rule)
    if half.dtype != torch.float16:
        raise Unsupported(name, "bfloat16", "must be numbers that float16 has, as q8_0 stores them")
    by_block = half.repeat_interleave(k // groups // 32, 1).reshape(n, k // 32, 1).view(torch.uint8)
    data = torch.cat([by_block, codes.reshape(n, k // 32, 32).view(torch.uint8)], -1)
    return QuantizedWeight.from_streams([data], "q8_0", n, k)


def _words(nibbles: Tensor) -> Tensor:
    """Packs eight codes of the last dimension in an int32, the first lowest."""
    return (nibbles << torch.arange(0, 32, 4)).sum(-1).to(torch.int32)  # wraps


def check_rule(scales: str) -> None:
    if scales not in ("exact", "nearest"):
        raise must_be("scales", repr(scales), "'exact' or 'nearest'")


def half_scales(scales: Tensor, name: str, rule: str | None = None) -> Tensor:
    """As float16 or bfloat16, whichever holds them all. rule: if neither does, "exact" refuses, "nearest" rounds; None:
    refuses."""
    values = scales.float()
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(scales.to(dtype).float(), values):
            return scales.to(dtype).contiguous()
    half = scales.to(torch.float16)
    if rule != "nearest":
        hint = "" if rule is None else '; scales="nearest" rounds them'
        given = str(scales.dtype).removeprefix("torch.")
        raise Unsupported(name, given, f"must be numbers that float16 has, as formats store them{hint}")
    if not ((half.float() - values).abs() <= values.abs() * 2**-11).all():
        what = f"from {values.abs().min():g} to {values.abs().max():g}"
        raise Unsupported(name, what, "must be 0, or magnitudes in float16's range, 2^-14 to 65504")
    return half.contiguous()
