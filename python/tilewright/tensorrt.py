# SPDX-License-Identifier: Apache-2.0
"""Tilewright's plugins for TensorRT: registers them, and makes the nodes of ONNX models and the layers of networks that use
them.

    import tensorrt as trt
    from tilewright import tensorrt as plugins

    plugins.register(trt, "libtilewright_tensorrt.so")
    w = tw.encode(weights, "nvfp4")
    node = plugins.gemm("gemm x=e4m3_row w=nvfp4 y=bf16 n=4096 k=4096 global=mul", ["x"], "y", w=w, x_from="bf16")

Nodes have the domain "tilewright". They need the package onnx, layers of networks only TensorRT. docs/use/tensorrt.md lists
the fields."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any, Union

from ._errors import InvalidArgument, IoError, Unsupported
from .codec import Encoded

__all__ = ["DOMAIN", "add", "conv", "gemm", "last_error", "register", "w4a8"]

DOMAIN = "tilewright"
_VERSION = "1"
_loaded: list[str] = []  # paths of the library


def register(trt: Any, library: Union[str, os.PathLike[str]] = "libtilewright_tensorrt.so") -> None:
    """Loads the plugins into TensorRT's registry, once for each process. trt: the module tensorrt or tensorrt_rtx. Raises
    IoError naming the library if TensorRT cannot load it."""
    registry = trt.get_plugin_registry()
    if any(creator.name == "TilewrightGemm" for creator in registry.all_creators):
        return
    path = os.fspath(library)
    try:
        registry.load_library(path)
    except Exception as error:
        raise IoError("library", path, f"cannot be loaded by TensorRT: {error}") from None
    _loaded.append(path)
    if not any(creator.name == "TilewrightGemm" for creator in registry.all_creators):
        raise IoError("library", path, "cannot be loaded by TensorRT; its log says why")


def last_error() -> str:
    """The latest error of the plugins in this process. TensorRT's log has it, too, but TensorRT-RTX's has not."""
    if not _loaded:
        return ""
    get = ctypes.CDLL(_loaded[-1]).tilewright_tensorrt_last_error
    get.restype = ctypes.c_size_t
    get.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(get(None, 0) + 1)
    get(text, len(text))
    return text.value.decode(errors="replace")


def gemm(
    problem: str,
    inputs: Sequence[str],
    output: str,
    *,
    w: Encoded | None = None,
    x_from: str | None = None,
    target: str | None = None,
    binaries: bool = False,
    name: str = "",
) -> Any:
    """A node TilewrightGemm. problem: a gemm, whose m may be missing. inputs: names of x, x_scales, x_global, w, w_scales,
    w_global, bias and c, of these only the ones that the problem has. w: constant weights, which are not among the inputs.
    x_from: the float type of x, if the node quantizes it. target: the GPU for which engines are built; None: the GPU that
    builds. binaries: whether engines contain the compiled kernels, so that they run without libnvrtc."""
    fields = {"problem": problem, "x_from": x_from, "target": target, "binaries": int(binaries), **_weights(w)}
    return _node("TilewrightGemm", inputs, output, name, fields)


def conv(
    problem: str,
    inputs: Sequence[str],
    output: str,
    *,
    w: Encoded | None = None,
    x_from: str | None = None,
    target: str | None = None,
    binaries: bool = False,
    name: str = "",
) -> Any:
    """A node TilewrightConv. problem: a conv; the number of images and the extents of x may vary. inputs: names of x,
    x_global, w, w_scales, w_global, bias, residual and amax, of these only the ones that the problem has. The rest is as of
    gemm()."""
    fields = {"problem": problem, "x_from": x_from, "target": target, "binaries": int(binaries), **_weights(w)}
    return _node("TilewrightConv", inputs, output, name, fields)


def w4a8(
    in_features: int,
    out_features: int,
    inputs: Sequence[str],
    output: str,
    *,
    alpha: float = 1.0,
    weight_packed: Any = None,
    weight_scale: Any = None,
    constant_weights: bool = False,
    target: str | None = None,
    binaries: bool = False,
    name: str = "",
) -> Any:
    """A node W4A8GemmPlugin. inputs: names of the activation, the packed weights [in_features / 2, out_features] and their
    scales [in_features / 16, out_features]; or of the activation alone, if weight_packed and weight_scale (arrays of bytes of
    these shapes) are constants of the node. constant_weights: the inputs never change, so that they are reordered once
    instead of at every launch."""
    fields: dict[str, Any] = {
        "in_features": in_features,
        "out_features": out_features,
        "alpha": float(alpha),
        "weight_packed": weight_packed,
        "weight_scale": weight_scale,
        "constant_weights": int(constant_weights),
        "target": target,
        "binaries": int(binaries),
    }
    return _node("W4A8GemmPlugin", inputs, output, name, fields)


def add(trt: Any, network: Any, plugin: str, inputs: Sequence[Any], fields: Mapping[str, Any]) -> Any:
    """Adds a plugin to a network without ONNX, and returns its layer. plugin: "TilewrightGemm", "W4A8GemmPlugin" or
    "TilewrightConv". inputs: tensors. fields: text, integers, floats, and arrays of bytes. Raises Unsupported if this
    TensorRT's Python lacks add_plugin_v3(), as TensorRT-RTX's does; InvalidArgument if the plugin refuses the fields, whose
    reason is in TensorRT's log."""
    if not hasattr(network, "add_plugin_v3"):
        raise Unsupported(
            "network", type(network).__name__, "has no add_plugin_v3(); add a node to an ONNX model instead"
        )
    creator = trt.get_plugin_registry().get_creator(plugin, _VERSION, "")
    if creator is None:
        raise InvalidArgument("plugin", plugin, "is not registered; call register() first")
    values = [_field(trt, name, value) for name, value in fields.items() if value is not None]
    made = creator.create_plugin(plugin, trt.PluginFieldCollection(values), trt.TensorRTPhase.BUILD)
    if made is None:
        raise InvalidArgument("fields", plugin, "are refused by the plugin; TensorRT's log says why")
    return network.add_plugin_v3(list(inputs), [], made)


def _weights(w: Encoded | None) -> dict[str, Any]:
    if w is None:
        return {}
    return {"w": w.data, "w_scales": w.scales, "w_global": w.global_scale}


def _bytes(value: Any) -> Any:
    import numpy as np

    return np.frombuffer(bytes(value) if not hasattr(value, "tobytes") else value.tobytes(), np.int8)


def _node(op: str, inputs: Sequence[str], output: str, name: str, fields: Mapping[str, Any]) -> Any:
    from onnx import helper, numpy_helper

    attributes: dict[str, Any] = {}
    for field, value in fields.items():
        if value is None or (field in ("binaries", "constant_weights") and not value):
            continue
        plain = isinstance(value, (str, int, float))
        attributes[field] = value if plain else numpy_helper.from_array(_bytes(value), f"{name or output}.{field}")
    identity = {"plugin_version": _VERSION, "plugin_namespace": ""}
    return helper.make_node(op, list(inputs), [output], name=name or output, domain=DOMAIN, **identity, **attributes)


def _field(trt: Any, name: str, value: Any) -> Any:
    import numpy as np

    kinds = trt.PluginFieldType
    if isinstance(value, str):
        return trt.PluginField(name, value.encode(), kinds.CHAR)
    if isinstance(value, int):
        return trt.PluginField(name, np.array([value], np.int32), kinds.INT32)
    if isinstance(value, float):
        return trt.PluginField(name, np.array([value], np.float32), kinds.FLOAT32)
    return trt.PluginField(name, _bytes(value), kinds.INT8)
