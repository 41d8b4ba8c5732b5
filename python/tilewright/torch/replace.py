# SPDX-License-Identifier: Apache-2.0
"""The replacement of a model's linear layers by quantized ones.

    report = replace_linears(model, [("lm_head", None), ("*.mlp.*", {"weight": "q4_k"}), ("*", {"weight": "q8_0"})])"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Union

from torch import nn

from .. import codec
from .._errors import InvalidArgument, TilewrightError
from ._spec import FORMATS, gemm_text
from .modules import QuantizedLinear, QuantizedWeight, W4A8Linear

_OPTIONS = ("weight", "activation", "encoder", "accum")
Options = Mapping[str, Any]
Rule = tuple[Union[str, "re.Pattern[str]", Callable[[str], bool]], Union[Options, None]]


class ReplaceReport(NamedTuple):
    """replaced: what became of each layer by qualified name; left: why a layer was left alone. Bytes of the weights
    that were replaced, before and after; shared ones count once."""

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
    model: nn.Module, rules: Sequence[Rule], *, layer: type[QuantizedLinear] = QuantizedLinear
) -> ReplaceReport:
    """Replaces nn.Linear layers in place. rules: in order, (which, options); the first that matches a layer's qualified
    name decides. which: a glob ("*.mlp.*"), a compiled regular expression (searched for), or a function of the name.
    options: arguments of QuantizedLinear.from_linear(), or None: leave it alone, as are layers that no rule matches.

    Left alone with a reason in the report are also subclasses of nn.Linear, layers whose shape the format does not
    take, and layers that share their weight with something that is not replaced alike. Layers that share a weight
    share it afterwards. Raises InvalidArgument for a rule that names an unknown format or encoder."""
    rules = [(which, None if options is None else {**layer.defaults, **options}) for which, options in rules]
    for _, options in rules:
        _check_options(options)
    if isinstance(model, nn.Linear):
        raise InvalidArgument(
            "model", type(model).__name__, "a module that contains layers; of one alone: from_linear()"
        )
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
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for name, linear in linears.items():
        options = _first_match(name, rules)
        why = _why_not(linear, options)
        if why is not None:
            left[name] = why
        elif options is not None:
            chosen[name] = options
    for name, options in chosen.items():
        for other in users[id(linears[name].weight)]:
            if chosen.get(other) != options:
                left[name] = f"shares its weight with {other}, which is not replaced alike"
    replaced: dict[str, str] = {}
    weights: dict[int, QuantizedWeight] = {}
    before = after = 0
    for name, options in chosen.items():
        if name in left:
            continue
        linear = linears[name]
        weight = weights.get(id(linear.weight))
        if weight is None:
            weight = QuantizedWeight.from_float(linear.weight, options["weight"], options.get("encoder"))
            weights[id(linear.weight)] = weight
            before += linear.weight.nbytes
            after += weight.nbytes
        rest = {field: options.get(field) for field in ("activation", "accum")}
        new = layer.from_weight(weight, linear.bias, **rest, dtype=linear.weight.dtype).train(linear.training)
        for parent, child_name in places[id(linear)]:
            setattr(parent, child_name, new)
        replaced[name] = new.extra_repr()
    return ReplaceReport(replaced, left, before, after)


def _first_match(name: str, rules: Sequence[Rule]) -> Options | None:
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


def _check_options(options: Options | None) -> None:
    if options is None:
        return
    for name in options:
        if name not in _OPTIONS:
            raise InvalidArgument("rules", repr(name), f"an option of {', '.join(_OPTIONS)}")
    format = codec.find(options["weight"])
    if options.get("activation") is not None:
        codec.find(options["activation"])
    encoder = options.get("encoder")
    if encoder is not None and encoder not in format.encoders:
        raise InvalidArgument("encoder", str(encoder), f"one of {', '.join(format.encoders)}, {format.name}'s")


def _why_not(linear: nn.Linear, options: Options | None) -> str | None:
    """Why a layer cannot be replaced."""
    if options is None:
        return "by the rules"
    if type(linear) is not nn.Linear:
        return f"a {type(linear).__name__}, whose owner may use its weight directly"
    if linear.weight.dtype not in FORMATS:
        return f"its weight is {linear.weight.dtype}"
    try:
        gemm_text(
            options.get("activation") or "f16",
            options["weight"],
            "f16",
            linear.out_features,
            linear.in_features,
            accum=options.get("accum"),
        )
    except TilewrightError as error:
        return str(error)
    return None


def replace_mlp_with_w4a8(
    model: nn.Module, *, which: str = r"(^|\.)(mlp|feed_forward|ffn)\.[^.]+$", accum: str | None = None
) -> int:
    """Makes the linear layers of MLP blocks W4A8Linear, in place, and returns how many. which: a regular expression
    that is searched for in qualified names: of the layers that belong to an MLP."""
    return len(replace_linears(model, [(re.compile(which), {"accum": accum})], layer=W4A8Linear).replaced)
