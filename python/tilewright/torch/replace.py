# SPDX-License-Identifier: Apache-2.0
"""Replaces a model's linear layers and convolutions by quantized ones.

report = replace_linears(model, [("lm_head", None), ("*.mlp.*", {"weight": "q4_k"}), ("*", {"weight": "q8_0"})])"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Union

from torch import nn

from .. import codec
from .._errors import TilewrightError, must_be
from ._spec import FORMATS, gemm_text
from .convolution import QuantizedConv1d, QuantizedConv2d, QuantizedConv3d
from .modules import QuantizedLinear, QuantizedWeight, W4A8Linear

Options = Mapping[str, Any]
Rule = tuple[Union[str, "re.Pattern[str]", Callable[[str], bool]], Union[Options, None]]


Rules = Union[str, Sequence[Rule], Mapping[str, Union[Options, None]]]


class ReplaceReport(NamedTuple):
    """replaced: what each layer became, by qualified name; left: why a layer was left alone. bytes_*: of the weights
    that were replaced; shared ones count once."""

    replaced: dict[str, str]
    left: dict[str, str]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        width = max((len(name) for name in (*self.replaced, *self.left)), default=0)
        lines = [f"{name:<{width}}  {what}" for name, what in self.replaced.items()]
        lines += [f"{name:<{width}}  left alone: {why}" for name, why in self.left.items()]
        sizes = f"{self.bytes_before / 1e6:.1f} MB of weights became {self.bytes_after / 1e6:.1f} MB"
        return "\n".join([*lines, f"{len(self.replaced)} replaced, {len(self.left)} left alone; {sizes}"])


def replace_linears(
    model: nn.Module, rules: Rules = "q4_0", *, layer: type[QuantizedLinear] = QuantizedLinear
) -> ReplaceReport:
    """Replaces nn.Linear layers in place. rules: one format for all weights; or a list of (which, options): the first
    that matches a layer's qualified name decides. which: a glob ("*.mlp.*"), a compiled regular expression (searched
    for), or a function of the name. options: arguments of QuantizedLinear.from_linear(), or None: leave it alone, as
    layers that no rule matches. A dict maps which to options.

    Also left alone, with a reason in the report: subclasses of nn.Linear, layers whose shape the format does not take,
    and layers that share their weight with something not replaced alike. Layers that share a weight share it
    afterwards. Raises InvalidArgument for a rule that names an unknown format or encoder."""
    return _replace(model, rules, {nn.Linear: _Linears(layer)})


def replace_convs(model: nn.Module, rules: Rules) -> ReplaceReport:
    """Replaces nn.Conv1d, nn.Conv2d and nn.Conv3d in place, as replace_linears() does linear layers. options: arguments
    of QuantizedConv2d.from_conv(). Circular padding is left alone, too, as are transposed convolutions, which the
    report omits."""
    layers = (QuantizedConv1d, QuantizedConv2d, QuantizedConv3d)
    return _replace(model, rules, {layer.plain: _Convs(layer) for layer in layers})


class _Linears:
    """What is replaced, and by what."""

    def __init__(self, layer: type[QuantizedLinear]) -> None:
        self.layer = layer

    def try_out(self, linear: Any, options: Options) -> None:
        """Raises TilewrightError for a layer that cannot be replaced."""
        x = options.get("activation") or "f16"
        accum = options.get("accum")
        gemm_text(x, options["weight"], "f16", linear.out_features, linear.in_features, accum=accum)

    def encode(self, linear: Any, options: Options) -> QuantizedWeight:
        return QuantizedWeight.from_float(linear.weight, options["weight"], options.get("encoder"))

    def make(self, linear: Any, weight: QuantizedWeight, options: Options) -> nn.Module:
        rest = {field: options.get(field) for field in ("activation", "accum")}
        return self.layer.from_weight(weight, linear.bias, **rest, dtype=linear.weight.dtype).train(linear.training)


class _Convs:
    def __init__(self, layer: type[Any]) -> None:
        self.layer = layer

    def try_out(self, conv: Any, options: Options) -> None:
        cols = conv.weight[0].numel()
        weight = QuantizedWeight(options["weight"], conv.out_channels, cols, device="meta")
        self.make(conv, weight, options)

    def encode(self, conv: Any, options: Options) -> QuantizedWeight:
        return self.layer._encode(conv, options["weight"], options.get("encoder"))  # type: ignore[no-any-return]

    def make(self, conv: Any, weight: QuantizedWeight, options: Options) -> nn.Module:
        rest = {name: value for name, value in options.items() if name not in ("weight", "encoder")}
        return self.layer._of(conv, weight, **rest)  # type: ignore[no-any-return]


def _replace(model: nn.Module, rules: Rules, kinds: Mapping[type[nn.Module], Any]) -> ReplaceReport:
    """kinds: by the type of layer."""
    some = next(iter(kinds.values())).layer
    rules = [(which, None if options is None else {**some.defaults, **options}) for which, options in _listed(rules)]
    for _, options in rules:
        _check_options(options, some.options)
    if isinstance(model, tuple(kinds)):
        raise must_be("model", type(model).__name__, "a module that contains layers; one alone is made from it")
    users: dict[int, list[str]] = {}
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for name, module in model.named_modules():
        for child_name, child in module._modules.items():
            if child is not None:
                places.setdefault(id(child), []).append((module, child_name))
        for parameter in module._parameters.values():
            if parameter is not None:
                users.setdefault(id(parameter), []).append(name)
    left: dict[str, str] = {}
    chosen: dict[str, Options] = {}
    layers: dict[str, Any] = {}
    kind_of: dict[str, Any] = {}
    for name, module in model.named_modules():
        kind = next((kind for plain, kind in kinds.items() if isinstance(module, plain)), None)
        if kind is None:
            continue
        layers[name], kind_of[name] = module, kind
        options = first_match(name, rules)
        why = _why_not(module, options, kinds)
        if why is not None:
            left[name] = why
        elif options is not None:
            chosen[name] = options
    for name, options in chosen.items():
        for other in users[id(layers[name].weight)]:
            if chosen.get(other) != options:
                left[name] = f"shares its weight with {other}, which is not replaced alike"
    replaced: dict[str, str] = {}
    weights: dict[int, QuantizedWeight] = {}
    before = after = 0
    for name, options in chosen.items():
        if name in left:
            continue
        old, kind = layers[name], kind_of[name]
        weight = weights.get(id(old.weight))
        if weight is None:
            weight = weights[id(old.weight)] = kind.encode(old, options)
            before += old.weight.nbytes
            after += weight.nbytes
        new = kind.make(old, weight, options)
        for parent, child_name in places[id(old)]:
            setattr(parent, child_name, new)
        replaced[name] = new.extra_repr()
    return ReplaceReport(replaced, left, before, after)


def replace_quantized(
    model: nn.Module, make: Callable[[Any], tuple[QuantizedWeight, dict[str, Any]] | None]
) -> ReplaceReport:
    """Replaces, in place, what other libraries have quantized. make: returns a module's weight and from_weight()'s
    options (dtype: of the model's floats), or None if the module is not theirs. If it raises, the layer is left alone
    and the report says why. Modules that share a weight share it afterwards. The report's bytes_before are the
    floats'."""
    if make(model) is not None:
        raise must_be("model", type(model).__name__, "a module that contains layers")
    made: dict[int, Any] = {}
    weights: dict[int, QuantizedWeight] = {}
    left: dict[str, str] = {}
    replaced: dict[str, str] = {}
    before = after = 0
    for name, old in list(model.named_modules(remove_duplicate=False)):
        if id(old) not in made:
            try:
                found = make(old)
                if found is not None:
                    weight = weights.setdefault(id(old.weight), found[0].to(old.weight.device))
                    layer = QuantizedLinear.from_weight(weight, old.bias, **found[1])
                    made[id(old)] = layer.train(old.training)
                    if weight is found[0]:
                        before += weight.rows * weight.cols * layer.dtype.itemsize
                        after += weight.nbytes
            except TilewrightError as error:
                left[name] = str(error)
        if id(old) in made:
            model.set_submodule(name, made[id(old)])
            replaced[name] = made[id(old)].extra_repr()
    return ReplaceReport(replaced, left, before, after)


def first_match(name: str, rules: Sequence[Rule]) -> Options | None:
    for which, options in rules:
        if isinstance(which, str):
            found = fnmatch.fnmatchcase(name, which)
        elif isinstance(which, re.Pattern):
            found = which.search(name) is not None
        else:
            found = which(name)
        if found:
            return options
    return None


def _listed(rules: Rules) -> list[Rule]:
    if isinstance(rules, str):
        return [("*", {"weight": rules})]
    listed: list[Any] = list(rules.items() if isinstance(rules, Mapping) else rules)
    for rule in listed:
        pair = isinstance(rule, (tuple, list)) and len(rule) == 2
        if not pair or not isinstance(rule[1], (Mapping, type(None))):
            raise must_be("rules", repr(rule), '(which, options or None): ("*.mlp.*", {"weight": "q4_0"})')
    return [(which, options) for which, options in listed]


def _check_options(options: Options | None, known: Sequence[str]) -> None:
    if options is None:
        return
    for name in options:
        if name not in known:
            raise must_be("rules", repr(name), f"an option of {', '.join(known)}")
    format = codec.find(options["weight"], "weight")
    if options.get("activation") is not None:
        codec.find(options["activation"], "activation")
    encoder = options.get("encoder")
    if encoder is not None and encoder not in format.encoders:
        raise must_be("encoder", encoder, f"one of {', '.join(format.encoders)}, {format.name}'s")


def _why_not(module: Any, options: Options | None, kinds: Mapping[type[nn.Module], Any]) -> str | None:
    """Why a layer cannot be replaced."""
    if options is None:
        return "by the rules"
    kind = kinds.get(type(module))
    if kind is None:
        return f"a {type(module).__name__}, whose owner may use its weight directly"
    if module.weight.dtype not in FORMATS:
        return f"its weight is {module.weight.dtype}"
    try:
        kind.try_out(module, options)
    except TilewrightError as error:
        return str(error)
    return None


def replace_mlp_with_w4a8(
    model: nn.Module,
    *,
    which: str = r"(^|\.)(mlp|feed_forward|ffn)\.[^.]+$",
    accum: str | None = None,
    layer: type[W4A8Linear] = W4A8Linear,
) -> int:
    """Replaces the linear layers of MLP blocks by W4A8Linear (or a subclass, layer), in place, and returns how many.
    which: a regular expression, searched for in qualified names, that finds an MLP's layers."""
    return len(replace_linears(model, [(re.compile(which), {"accum": accum})], layer=layer).replaced)
