# SPDX-License-Identifier: Apache-2.0
"""Quantized models in transformers. Importing this module registers the method "tilewright": import it before loading a
saved model, or transformers initializes its layers at random.

    from tilewright.transformers import TilewrightConfig, from_pretrained

    # A float checkpoint, quantized after loading; save_pretrained() and from_pretrained() keep the result.
    model = AutoModelForCausalLM.from_pretrained(path, quantization_config=TilewrightConfig("q4_0", "q8_1"))

    # A checkpoint quantized by GPTQ, AWQ, compressed-tensors or Model Optimizer (NVFP4), or a GGUF file, unchanged.
    model = from_pretrained(AutoModelForCausalLM, path, activation="q8_1")

Needs transformers 5 or newer. Linear layers become tilewright.torch.QuantizedLinear."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils import cached_file
from transformers.utils.quantization_config import QuantizationConfigMixin

from . import checkpoints, codec
from ._errors import TilewrightError, Unsupported, must_be
from .torch import QuantizedLinear, QuantizedWeight, replace_linears
from .torch._spec import by_name
from .torch.checkpoints import host_weight, load_quantized, read_layers, scheme_of
from .torch.replace import ReplaceReport, first_match

__all__ = ["TilewrightConfig", "TilewrightQuantizer", "from_pretrained"]

METHOD = "tilewright"


@register_quantization_config(METHOD)
class TilewrightConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """How linear layers are quantized. weight, activation, encoder, accum: as of QuantizedLinear.from_linear().

    rules: replace the one choice for all: [which, options] in order, as for replace_linears(), with globs. Without
    rules, modules_to_not_convert are left alone (None: the output embedding and tied modules, transformers' default); a
    name matches a module and all in it. source, scales: for a quantized checkpoint, its quantization_config and
    load_quantized()'s scales; from_pretrained() sets them."""

    def __init__(
        self,
        weight: str = "q4_0",
        activation: str | None = None,
        *,
        encoder: str | None = None,
        accum: str | None = None,
        rules: Sequence[Sequence[Any]] | None = None,
        modules_to_not_convert: Sequence[str] | None = None,
        source: Mapping[str, Any] | None = None,
        scales: str = "exact",
        quant_method: str = METHOD,
    ) -> None:
        if quant_method != METHOD:
            raise must_be("quant_method", repr(quant_method), f"{METHOD!r}")
        for rule in rules or ():
            if len(rule) != 2 or not isinstance(rule[0], str) or not isinstance(rule[1], (Mapping, type(None))):
                raise must_be("rules", repr(rule), "[glob, options or None]: it is stored as JSON")
        codec.find(weight, "weight")
        if activation is not None:
            codec.find(activation, "activation")
        self.quant_method = METHOD
        self.weight, self.activation, self.encoder, self.accum = weight, activation, encoder, accum
        self.rules: Any = None if rules is None else [[which, options and dict(options)] for which, options in rules]
        self.modules_to_not_convert = None if modules_to_not_convert is None else list(modules_to_not_convert)
        self.source = None if source is None else dict(source)
        self.scales = scales


@register_quantizer(METHOD)
class TilewrightQuantizer(HfQuantizer):  # type: ignore[misc]
    """What transformers calls while it loads a model. Floats are loaded as always and quantized afterwards, layer by
    layer; the library itself reads layers that are quantized in the files. `report` says what became of each layer."""

    requires_calibration = False
    quantization_config: TilewrightConfig
    report: ReplaceReport | None = None

    def __init__(self, quantization_config: TilewrightConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        if self.pre_quantized and quantization_config.source is None:
            raise must_be("source", "None", "the quantization_config of the checkpoint: use from_pretrained()")
        self.layers: dict[str, QuantizedLinear] = {}
        """By name in the model: layers to insert when everything else has been loaded."""

    def validate_environment(self, *arguments: Any, device_map: Any = None, **options: Any) -> None:
        places = {str(place) for place in device_map.values()} if isinstance(device_map, dict) else {str(device_map)}
        if "disk" in places or ("cpu" in places and len(places) > 1):
            raise Unsupported("device_map", str(device_map), "must not offload: layers stay where they are")

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Sequence[str] | None = None, dtype: torch.dtype | None = None, **more: Any
    ) -> Any:
        config = self.quantization_config
        if config.source is None or not self.pre_quantized:
            return model
        files = [pathlib.Path(file) for file in checkpoint_files or ()]
        if not files or any(file.suffix != ".safetensors" for file in files):
            raise Unsupported("checkpoint_files", str([file.name for file in files]), "must be safetensors files")
        known = set(model._keys_to_ignore_on_load_unexpected or ())

        def options(name: str) -> Mapping[str, Any]:
            return self._options(_in_model(model, name))

        with torch.device("cpu"):  # transformers has set meta
            for name, layer in read_layers(
                files, scheme_of(config.source), options, dtype, config.source, config.scales
            ):
                target = _in_model(model, name)
                _check_shape(target, model.get_submodule(target), layer)
                # The placeholder loads nothing, so the layer's tensors are unexpected now.
                model.set_submodule(target, _Placeholder())
                known |= {rf"^{re.escape(each)}\." for each in (name, target)}
                self.layers[target] = layer
        model._keys_to_ignore_on_load_unexpected = known
        return model

    def _process_model_after_weight_loading(self, model: Any, **more: Any) -> Any:
        config = self.quantization_config
        if config.source is None:
            self.report = replace_linears(model, self._rules(model))
        else:
            for name, layer in self.layers.items():
                place = _device_of(model, name)
                model.set_submodule(name, layer.to(place).eval())
            self.layers = {}
        config.source = {"quant_method": METHOD}  # for save_pretrained()
        return model

    def _rules(self, model: Any) -> list[Any]:
        config = self.quantization_config
        if config.rules is not None:
            return list(config.rules)
        keep = self.get_modules_to_not_convert(model, config.modules_to_not_convert, model._keep_in_fp32_modules)
        names = {name.removesuffix(".weight") for name in keep}
        rest = {"weight": config.weight, "activation": config.activation}
        more = {"encoder": config.encoder, "accum": config.accum}
        return [
            (lambda name: any(f".{each}." in f".{name}." for each in names), None),
            ("*", {**rest, **{key: value for key, value in more.items() if value is not None}}),
        ]

    def _options(self, name: str) -> Mapping[str, Any]:
        """The options of a stored layer that its format does not say."""
        config = self.quantization_config
        given: Mapping[str, Any] = {"activation": config.activation, "accum": config.accum}
        if config.rules is not None:
            given = first_match(name, config.rules) or {}
        return {key: given.get(key) for key in ("activation", "accum")}

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        for name, module in list(model.named_modules()):
            if isinstance(module, QuantizedLinear):
                model.set_submodule(name, module.to_linear(dtype))
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """Weights are constants, through which gradients pass: adapters can be trained."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True


class _Placeholder(nn.Module):
    """Where a layer will be."""


# The arguments of a model's from_pretrained() that say where a file is.
_HUB = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")


def from_pretrained(
    model_class: Any,
    path: str | os.PathLike[str],
    *,
    activation: str | None = None,
    accum: str | None = None,
    scales: str = "exact",
    gguf_file: str | None = None,
    output_embedding: bool | None = None,
    **arguments: Any,
) -> Any:
    """model_class.from_pretrained(path, **arguments) for a quantized checkpoint. Layers become QuantizedLinear, whose
    weights have exactly the checkpoint's values. model_class: AutoModelForCausalLM, or any other of transformers.
    activation, accum: as of QuantizedLinear; scales: as of load_quantized().

    gguf_file: a GGUF file in that folder or repository. transformers loads it as floats; then layers whose values the
    file has in a quantized format, in any order of rows, replace those floats. `model.hf_quantizer.report` says which
    were not replaced. Needs the package gguf. output_embedding: if a GGUF file's output embedding shares the input
    embedding's floats, whether it becomes its own layer, as the file stores it, so that a token reads codes instead of
    floats (None: yes).

    Raises InvalidArgument or Unsupported naming what does not fit."""
    hub = {name: arguments[name] for name in _HUB if name in arguments}
    if gguf_file is not None:
        config = TilewrightConfig(activation=activation, accum=accum)
        return _from_gguf(model_class, path, gguf_file, config, output_embedding is not False, arguments)
    if output_embedding is not None:
        raise must_be("output_embedding", output_embedding, "None: it is for gguf_file")
    config = arguments.pop("config", None) or transformers.AutoConfig.from_pretrained(path, **hub)
    source = getattr(config, "quantization_config", None)
    if source is None:
        raise Unsupported(
            "path",
            str(path),
            "must be a quantized checkpoint; for one of floats, pass quantization_config=TilewrightConfig(...) to the "
            "class's own from_pretrained()",
        )
    source = dict(source) if isinstance(source, Mapping) else source.to_dict()
    scheme_of(source)  # refuses unsupported schemes before loading
    if source.get("quant_method") != METHOD:
        source = TilewrightConfig(activation=activation, accum=accum, source=source, scales=scales).to_dict()
    elif activation is not None or accum is not None:
        source.update(activation=activation, accum=accum, rules=None)
    config.quantization_config = source
    return model_class.from_pretrained(path, config=config, **arguments)


def _from_gguf(
    model_class: Any, path: Any, gguf_file: str, config: TilewrightConfig, output: bool, arguments: Any
) -> Any:
    hub = {name: arguments[name] for name in _HUB if name in arguments and name != "trust_remote_code"}
    floats = transformers.GgufConfig(dequantize=True)
    model = model_class.from_pretrained(path, gguf_file=gguf_file, quantization_config=floats, **arguments)
    file = cached_file(path, gguf_file, **hub)
    config.source = {"quant_method": "gguf"}
    quantizer = TilewrightQuantizer(config, pre_quantized=True)
    options = {"activation": config.activation, "accum": config.accum}
    head = model.get_output_embeddings() if output else None
    quantizer.layers, quantizer.report = _matched(model, file, options, head)
    if any(model.get_submodule(name) is head for name in quantizer.layers):
        for part in (model.config, model.config.get_text_config()):
            part.tie_word_embeddings = False  # they are stored apart from now on
    model.hf_quantizer, model.is_quantized, model.quantization_method = quantizer, True, METHOD
    quantizer.postprocess_model(model)
    return model


def _matched(
    model: nn.Module, file: str, options: Mapping[str, Any], shared: nn.Module | None = None
) -> tuple[dict[str, Any], ReplaceReport]:
    """Matches layers of a GGUF file to those of a model loaded from it, by values, since GGUF has its own names. Converters
    reorder rows for some models, so a matrix with the same rows in another order matches, too. shared: a layer to match
    although another module has its weight."""
    stored: dict[tuple[int, ...], list[_Stored]] = {}
    for _, layer in load_quantized(file):
        stored.setdefault(tuple(layer.weight.shape), []).append(_Stored(layer.weight))
    users: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        users.setdefault(id(parameter), []).append(name)
    layers: dict[str, Any] = {}
    left: dict[str, str] = {}
    before = after = 0
    for name, module in model.named_modules():
        if type(module) is not nn.Linear:
            continue
        if len(users[id(module.weight)]) > 1 and module is not shared:
            left[name] = f"shares its weight: {', '.join(users[id(module.weight)])}"
            continue
        weight = _found(stored.get(tuple(module.weight.shape), ()), module.weight.detach().cpu())
        if weight is None:
            left[name] = "the file has no quantized matrix of these values"
            continue
        try:
            layers[name] = QuantizedLinear.from_weight(weight, module.bias, dtype=module.weight.dtype, **options)
        except TilewrightError as error:
            left[name] = str(error)
            continue
        before += module.weight.nbytes
        after += weight.nbytes
    return layers, ReplaceReport({name: layer.extra_repr() for name, layer in layers.items()}, left, before, after)


class _Stored:
    """A matrix of a GGUF file: its first row, which tells most matrices apart, and digests of all rows if needed."""

    def __init__(self, weight: QuantizedWeight) -> None:
        self.weight = weight
        rows = [stream.reshape(weight.rows, -1)[:1] for stream in weight.streams]
        self.first = QuantizedWeight.from_streams(rows, weight.format, 1, weight.cols).dequantize()[0]
        self.digests: dict[torch.dtype, list[bytes]] = {}

    def rows(self, dtype: torch.dtype) -> list[bytes]:
        if dtype not in self.digests:
            self.digests[dtype] = _rows(self.weight.dequantize(dtype))
        return self.digests[dtype]


def _found(candidates: Sequence[_Stored], values: Tensor) -> QuantizedWeight | None:
    """The stored matrix with these values, its rows in the order of the values'. It compares whole matrices first, which
    takes less time than digests of their rows."""
    dtype = values.dtype
    for each in candidates:
        if torch.equal(each.first.to(dtype), values[0]) and torch.equal(each.weight.dequantize(dtype), values):
            return each.weight
    wanted = _rows(values) if candidates else []
    in_order = sorted(wanted)
    for each in candidates:
        rows = each.rows(dtype)
        if sorted(rows) != in_order:
            continue
        places: dict[bytes, list[int]] = {}
        for index, row in enumerate(rows):
            places.setdefault(row, []).append(index)
        streams = by_name(codec.find(each.weight.format).streams, each.weight.stored())
        encoded = codec.Encoded(each.weight.format, each.weight.rows, each.weight.cols, *streams)
        return host_weight(checkpoints.gather_rows(encoded, [places[row].pop(0) for row in wanted]))
    return None


def _rows(values: Tensor) -> list[bytes]:
    """A digest of each row of a matrix; -0 counts as 0."""
    rows = (values + 0.0).contiguous().view(torch.uint8).numpy()
    return [hashlib.blake2b(row, digest_size=16).digest() for row in rows]


def _in_model(model: Any, name: str) -> str:
    """A layer's name in the model: the checkpoint may have a head that the model lacks, or the reverse."""
    prefix = model.base_model_prefix + "."
    for candidate in (name, name.removeprefix(prefix), prefix + name):
        try:
            model.get_submodule(candidate)
        except AttributeError:
            continue
        return candidate
    raise must_be("model", type(model).__name__, f"one that has a module {name}, as the checkpoint does")


def _check_shape(name: str, module: Any, layer: QuantizedLinear) -> None:
    shape = tuple(getattr(module, part, None) for part in ("in_features", "out_features"))
    if shape != (layer.in_features, layer.out_features):
        raise must_be(
            name, f"{type(module).__name__} {shape}", f"a linear layer {layer.in_features} -> {layer.out_features}"
        )


def _device_of(model: Any, name: str) -> torch.device:
    """Where transformers puts a module."""
    places = getattr(model, "hf_device_map", None) or {}
    while name and name not in places:
        name = name.rpartition(".")[0]
    if name in places:
        return torch.device(places[name])
    return next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))
