# SPDX-License-Identifier: Apache-2.0
"""The plugin for vLLM against vllm_signatures: kernels are given a layer's parameters as vLLM's methods make them, and
compute as the checkpoint's definition says. `./dev hosts vllm` runs the real vLLM."""

from __future__ import annotations

import logging
import pathlib
import re
import sys
import types

import numpy as np
import pytest
from conftest import SOURCE
from torch_support import torch, values

pytest.importorskip("safetensors")
from test_torch_checkpoints import E2M1, GROUP, Layer, awq, compressed, gptq

sys.path.insert(0, str(pathlib.Path(__file__).parent / "vllm_signatures"))
vllm = pytest.importorskip("vllm")
sys.path.pop(0)
if not hasattr(vllm, "process"):
    pytest.skip("the real vLLM is installed", allow_module_level=True)

from vllm import process
from vllm.model_executor.kernels import linear as theirs
from vllm.model_executor.layers import linear as layers
from vllm.model_executor.layers import quantization
from vllm.platforms import PlatformEnum, current_platform

import tilewright as tw
import tilewright.torch as twt
import tilewright.vllm
from tilewright.vllm import experts, gguf, kernels, prepared
from tilewright.vllm.config import TilewrightConfig

if tw.Device.cpu(1).arch == "x86-64":
    pytest.skip("this CPU has no kernels", allow_module_level=True)

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(prepared, "_said", set())
    theirs.Theirs.loaded = 0


def close(y, want, tolerance):
    assert tuple(y.shape) == want.shape
    assert np.abs(values(y) - want).max() <= tolerance * np.abs(want).max()


# ---- registration


def lists():
    return [found for name, found in vars(theirs).items() if name.startswith("_POSSIBLE")]


@pytest.fixture
def empty_lists():
    before = [dict((platform, list(each)) for platform, each in found.items()) for found in lists()]
    yield
    for found, old in zip(lists(), before):
        found.clear()
        found.update(old)


@pytest.mark.parametrize("mode, place", [(None, 0), ("fallback", 1), ("off", None)])
def test_who_comes_first(monkeypatch, empty_lists, mode, place):
    monkeypatch.delenv("TILEWRIGHT_VLLM", raising=False)
    if mode:
        monkeypatch.setenv("TILEWRIGHT_VLLM", mode)
    for _ in range(2):  # vLLM may call it again
        tilewright.vllm.register()
    for platform in (PlatformEnum.CPU, PlatformEnum.CUDA):
        found = theirs._POSSIBLE_KERNELS[platform]
        assert len(found) == (1 if mode == "off" else 2)
        if place is not None:
            assert found[place] is kernels.TilewrightMPLinearKernel
            assert theirs._POSSIBLE_FP8_BLOCK_KERNELS[platform] == [kernels.TilewrightFp8LinearKernel]
            assert theirs._POSSIBLE_WFP8A16_KERNELS[platform] == [kernels.TilewrightFp8LinearKernel]
            assert theirs._POSSIBLE_NVFP4_KERNELS[platform] == [kernels.TilewrightNvFp4LinearKernel]


def test_a_mode_that_there_is_not(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_VLLM", "on")
    with pytest.raises(tw.InvalidArgument, match="TILEWRIGHT_VLLM must be unset, 'fallback' or 'off' .got 'on'"):
        tilewright.vllm.register()


def test_without_the_library(monkeypatch, caplog):
    def missing(front):
        raise tw.LibraryMissing("libtilewright_c", "/x.so", "cannot be loaded")

    monkeypatch.delenv("TILEWRIGHT_VLLM", raising=False)
    monkeypatch.setattr(tilewright.vllm, "_register", missing)
    with caplog.at_level(logging.WARNING):
        tilewright.vllm.register()
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("Tilewright is off, and vLLM uses its own kernels: libtilewright_c /x.so cannot be loaded")


def test_entry_point():
    text = (SOURCE / "python" / "pyproject.toml").read_text()
    assert re.search(
        r'\[project.entry-points."vllm.general_plugins"\]\ntilewright = "tilewright.vllm:register"\n', text
    )


def test_platforms(monkeypatch):
    monkeypatch.setattr(current_platform, "is_cpu", lambda: False, raising=False)
    kernel = kernels.TilewrightInt8LinearKernel
    assert kernel.is_supported(90) == (False, "needs a CPU or an NVIDIA GPU")
    monkeypatch.setattr(current_platform, "is_cuda", lambda: True, raising=False)
    assert kernel.is_supported(90) == (True, None) and kernel.get_min_capability() == 75
    assert kernel.is_supported(70) == (False, "needs compute capability 7.5, and this GPU has 7.0")


# ---- integers


def scalar_type(bits, bias):
    return types.SimpleNamespace(size_bits=bits, bias=bias)


def config_of(n, k, group=GROUP, bits=4, zeros=False, full_k=None, **more):
    return types.SimpleNamespace(
        full_weight_shape=(full_k or k, n),
        partition_weight_shape=(k, n),
        weight_type=scalar_type(bits, 0 if zeros else 1 << (bits - 1)),
        act_type=torch.float32,
        group_size=group,
        zero_points=zeros,
        **more,
    )


def parameter(tensor, **dims):
    out = torch.nn.Parameter(tensor.contiguous(), requires_grad=False)
    for name, value in dims.items():
        setattr(out, name, value)
    return out


def mp_layer(kind, one, bias=None):
    """A layer as vLLM's method hands it to a kernel, and the names of its parameters."""
    layer = torch.nn.Module()
    layer.bias = bias
    if kind.startswith("compressed"):
        tensors = compressed(one, "zeros" not in kind)
        layer.weight_packed = parameter(tensors["weight_packed"], input_dim=1, output_dim=0, packed_dim=1)
        layer.weight_scale = parameter(tensors["weight_scale"], input_dim=1, output_dim=0)
        if "zeros" in kind:
            layer.weight_zero_point = parameter(tensors["weight_zero_point"], input_dim=1, output_dim=0, packed_dim=0)
        return layer, ("weight_packed", "weight_scale", "weight_zero_point")
    tensors = gptq(one, 2)
    layer.qweight = parameter(tensors["qweight"], input_dim=0, output_dim=1, packed_dim=0)
    layer.scales = parameter(tensors["scales"], input_dim=0, output_dim=1)
    layer.qzeros = parameter(tensors["qzeros"], input_dim=0, output_dim=1, packed_dim=1)
    return layer, ("qweight", "scales", "qzeros")


@pytest.mark.parametrize("kind", ["gptq", "compressed", "compressed_zeros", "awq"])
@pytest.mark.parametrize("bias", [False, True])
def test_integers(kind, bias):
    """AWQ's codes come turned into GPTQ's layout, with zero points."""
    zeros = kind in ("awq", "compressed_zeros")
    one = Layer(1, symmetric=not zeros, n=48, k=4 * GROUP)
    given = torch.nn.Parameter(torch.randn(48)) if bias else None
    layer, names = mp_layer(kind, one, given)
    c = config_of(48, 4 * GROUP, zeros=zeros)
    assert kernels.TilewrightMPLinearKernel.can_implement(c) == (True, None)
    kernel = kernels.TilewrightMPLinearKernel(c, *names)
    kernel.process_weights_after_loading(layer)
    assert all(getattr(layer, name, None) is None for name in names)  # freed
    weight = layer.tilewright.weight
    assert weight.tiles == "q8_1" and weight.format == ("uint4_g64" if zeros else "int4_g64")
    assert np.array_equal(values(weight.dequantize()), one.weight)
    x = torch.randn(2, 3, 4 * GROUP)
    want = values(x) @ one.weight.T
    close(kernel.apply_weights(layer, x), want, 2e-2)
    if bias:
        close(kernel.apply_weights(layer, x, given), want + values(given), 2e-2)
    else:
        other = torch.randn(48)
        close(kernel.apply_weights(layer, x, other), want + values(other), 2e-2)


@pytest.mark.parametrize("bits", [2, 8])
@pytest.mark.parametrize("group", [GROUP, -1])
def test_other_bits(bits, group):
    r = np.random.default_rng(bits)
    n, k = 32, 2 * GROUP
    codes, middle = r.integers(0, 1 << bits, (n, k)), 1 << (bits - 1)
    groups = 1 if group == -1 else k // group
    scales = (r.random((n, groups)) + 0.5).astype(np.float16)
    per = 32 // bits
    packed = (codes.reshape(n, -1, per).astype(np.uint64) << np.arange(0, 32, bits, dtype=np.uint64)).sum(-1)
    layer = torch.nn.Module()
    layer.bias = None
    layer.q = parameter(torch.from_numpy(packed.astype(np.uint32).view(np.int32)), input_dim=1, output_dim=0)
    layer.s = parameter(torch.from_numpy(scales), input_dim=1, output_dim=0)
    c = config_of(n, k, group, bits)
    assert kernels.TilewrightMPLinearKernel.can_implement(c) == (True, None)
    kernel = kernels.TilewrightMPLinearKernel(c, w_q_param_name="q", w_s_param_name="s")
    kernel.process_weights_after_loading(layer)
    want = (codes - middle) * np.repeat(scales.astype(np.float64), k // groups, 1)
    assert np.array_equal(values(layer.tilewright.weight.dequantize()), want)


def test_order_of_columns():
    """Versions of vLLM with has_g_idx name a fourth parameter."""
    one = Layer(5, act_order=True, symmetric=True, n=16, k=4 * GROUP)
    layer, names = mp_layer("gptq", one)
    layer.g_idx = parameter(torch.from_numpy(one.g_idx.astype(np.int32)))
    c = config_of(16, 4 * GROUP, has_g_idx=True)
    kernel = kernels.TilewrightMPLinearKernel(c, *names, "g_idx")
    kernel.process_weights_after_loading(layer)
    assert layer.g_idx is None and layer.tilewright.layers[0].order is not None
    x = torch.randn(3, 4 * GROUP)
    close(kernel.apply_weights(layer, x), values(x) @ one.weight.T, 2e-2)


def test_columns_of_a_shard():
    """A process that has half of the columns gets all scales, if their order is by g_idx."""
    one = Layer(6, act_order=True, symmetric=True, n=16, k=4 * GROUP)
    r = np.random.default_rng(1)
    one.g_idx = np.concatenate([r.permutation(half) for half in np.split(np.repeat([3, 1, 2, 0, 1, 3, 0, 2], 32), 2)])
    layer, names = mp_layer("gptq", one)
    layer.qweight = parameter(layer.qweight[16:], input_dim=0, output_dim=1)
    layer.g_idx = parameter(torch.from_numpy(one.g_idx[128:].astype(np.int32)))
    kernel = kernels.TilewrightMPLinearKernel(config_of(16, 128, full_k=256, has_g_idx=True), *names, "g_idx")
    kernel.process_weights_after_loading(layer)
    assert layer.tilewright.weight.format == "int4_g32"
    x = torch.randn(3, 128)
    close(kernel.apply_weights(layer, x), values(x) @ one.weight[:, 128:].T, 2e-2)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"weight_type": scalar_type(3, 4)}, "weight_type .* is not supported; use codes of 2, 4 or 8 bits"),
        ({"weight_type": scalar_type(4, 0)}, "weight_type"),  # signed, or without the zero points that it needs
        ({"zero_points": True}, "weight_type"),
        ({"group_size": 48}, "group_size 48 is not supported; use -1 or a multiple of 32"),
        ({"partition_weight_shape": (112, 48)}, "group_size 64 is cut by tensor parallelism into pieces of 16 columns"),
        ({"partition_weight_shape": (256, 40)}, "n must be a multiple of 16"),
        ({"act_type": torch.int8}, "dtype must be float32, float16 or bfloat16 .got torch.int8"),
    ],
)
def test_what_no_kernel_implements(change, reason):
    c = config_of(48, 4 * GROUP)
    vars(c).update(change)
    able, why = kernels.TilewrightMPLinearKernel.can_implement(c)
    assert not able and re.search(reason, why), why


def test_vllm_goes_on(caplog, empty_lists):
    """A layer that cannot be used after all goes to vLLM's next kernel, which is said once."""
    kernels.register_kernels(front=True)
    for _ in range(2):
        one = Layer(1, symmetric=True, n=48, k=4 * GROUP)
        one.g_idx = np.full(4 * GROUP, 9)
        layer, names = mp_layer("gptq", one)
        layer.g_idx = parameter(torch.from_numpy(one.g_idx.astype(np.int32)))
        kernel = kernels.TilewrightMPLinearKernel(config_of(48, 4 * GROUP, has_g_idx=True), *names, "g_idx")
        with caplog.at_level(logging.WARNING):
            kernel.process_weights_after_loading(layer)
        assert layer.qweight is not None
        assert torch.equal(kernel.apply_weights(layer, torch.ones(2, 4 * GROUP)), torch.zeros(2, 48))
    assert theirs.Theirs.loaded == 2
    (message,) = [record.getMessage() for record in caplog.records if "chosen for" in record.getMessage()]
    assert "Theirs computes" in message and "g_idx must be groups below 4 (got 9 to 9)" in message


def test_requests_compile_nothing():
    one = Layer(1, symmetric=True, n=48, k=4 * GROUP)
    layer, names = mp_layer("gptq", one)
    kernel = kernels.TilewrightMPLinearKernel(config_of(48, 4 * GROUP), *names)
    kernel.process_weights_after_loading(layer)
    before = twt.engine().stats.compiled
    for rows in (1, 3, 17, 130):
        kernel.apply_weights(layer, torch.randn(rows, 4 * GROUP))
    assert twt.engine().stats.compiled == before


def test_under_compile():
    one = Layer(1, symmetric=True, n=16, k=2 * GROUP)
    bias = torch.nn.Parameter(torch.randn(16))
    layer, names = mp_layer("gptq", one, bias)
    kernel = kernels.TilewrightMPLinearKernel(config_of(16, 2 * GROUP), *names)
    kernel.process_weights_after_loading(layer)
    x = torch.randn(3, 2 * GROUP)

    def call(x):
        return kernel.apply_weights(layer, x, layer.bias)

    assert torch.equal(torch.compile(call, fullgraph=True, backend="eager")(x), call(x))


# ---- 8 bits


def eight_bit_layer(codes, scales, bias=None):
    layer = torch.nn.Module()
    layer.weight, layer.weight_scale = parameter(codes), parameter(scales)
    layer.bias, layer.params_dtype, layer.logical_widths = bias, torch.float32, [32, 16]
    return layer


@pytest.mark.parametrize("scales", ["row", "tensor", "fused"])
def test_int8(scales):
    r = np.random.default_rng(1)
    codes = torch.from_numpy(r.integers(-127, 128, (48, 64))).to(torch.int8)
    scale = torch.rand({"row": (48, 1), "tensor": (1,), "fused": (2,)}[scales]) + 0.1
    layer = eight_bit_layer(codes, scale)
    names = ("weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj")
    c = types.SimpleNamespace(is_static_input_scheme=False, is_channelwise=True, input_symmetric=True)
    assert kernels.TilewrightInt8LinearKernel.can_implement(c) == (True, None)
    kernel = kernels.TilewrightInt8LinearKernel(c, names)
    kernel.process_weights_after_loading(layer)
    by_row = scale.repeat_interleave(torch.tensor([32, 16])) if scales == "fused" else scale.reshape(-1).expand(48)
    want = values(codes.float()) * values(by_row)[:, None]
    x = torch.randn(3, 64)
    close(kernel.apply_weights(layer, x), values(x) @ want.T, 2e-2)
    c.input_symmetric = False
    assert kernels.TilewrightInt8LinearKernel.can_implement(c)[1].startswith("input_symmetric=False is not supported")


def fp8_config(shape, inputs, n=128, k=256):
    group = type("GroupShape", (tuple,), {"row": property(lambda s: s[0]), "col": property(lambda s: s[1])})(shape)
    key = types.SimpleNamespace(scale=types.SimpleNamespace(group_shape=group))
    activation = types.SimpleNamespace(dtype=inputs)
    return types.SimpleNamespace(
        weight_shape=(n, k), weight_quant_key=key, activation_quant_key=activation, input_dtype=torch.float32
    )


@pytest.mark.parametrize("inputs", [torch.float8_e4m3fn, torch.bfloat16])
@pytest.mark.parametrize("shape", [(-1, -1), (1, -1), (128, 128)])
def test_fp8(shape, inputs):
    codes = torch.randn(128, 256).to(torch.float8_e4m3fn)
    scale = torch.rand({(-1, -1): (1,), (1, -1): (128, 1), (128, 128): (1, 2)}[shape]) + 0.5
    c = fp8_config(shape, inputs)
    assert kernels.TilewrightFp8LinearKernel.can_implement(c) == (True, None)
    if shape == (128, 128):
        layer = eight_bit_layer(codes, scale)
        kernel, wide = kernels.TilewrightFp8LinearKernel(c), scale.repeat_interleave(128, 1)
    else:
        layer = eight_bit_layer(codes.t(), scale)
        kernel, wide = kernels.TilewrightFp8LinearKernel(c, ["weight", "weight_scale"]), scale
    kernel.process_weights_after_loading(layer)
    want = values(codes.float()) * values(wide)
    assert np.array_equal(values(layer.tilewright.weight.dequantize()), want.astype(np.float32))
    x = torch.randn(3, 256)
    close(kernel.apply_weights(layer, x), values(x) @ want.T, 1e-4)  # exact on a CPU


def test_blocks_that_no_format_has():
    able, why = kernels.TilewrightFp8LinearKernel.can_implement(fp8_config((64, 128), torch.float8_e4m3fn))
    assert not able and "weight blocks of (64, 128) in 256 columns are not supported; use 128 x 128" in why


# ---- 4-bit floats


@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_fp4(kind):
    r = np.random.default_rng(0)
    n, k, size = 32, 64, 32 if kind == "mxfp4" else 16
    codes = r.integers(0, 16, (n, k))
    layer = torch.nn.Module()
    layer.bias, layer.params_dtype = None, BF16
    layer.weight = parameter(torch.from_numpy((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)))
    if kind == "mxfp4":
        exponents = r.integers(120, 130, (n, k // size))
        layer.weight_scale, scales = parameter(torch.from_numpy(exponents.astype(np.uint8))), 2.0 ** (exponents - 127)
        kernel = kernels.TilewrightMxfp4LinearKernel(None)
    else:
        stored = torch.from_numpy((r.random((n, k // size)) * 400 + 1).astype(np.float32)).to(torch.float8_e4m3fn)
        layer.weight_scale, layer.weight_global_scale = parameter(stored), parameter(torch.tensor(2.0**-9))
        scales = values(stored.float()) * 2.0**-9
        kernel = kernels.TilewrightNvFp4LinearKernel(None)
    assert kernel.can_implement(None) == (True, None)
    kernel.process_weights_after_loading(layer)
    want = E2M1[codes] * np.repeat(scales, size, 1)
    assert np.array_equal(values(layer.tilewright.weight.dequantize()), want)
    x = torch.randn(3, k).to(BF16)
    close(kernel.apply_weights(layer, x), values(x) @ want.T, 2e-2)


def test_a_factor_that_is_missing():
    layer = torch.nn.Module()
    layer.bias, layer.params_dtype = None, BF16
    layer.weight, layer.weight_scale = parameter(torch.zeros(32, 32, dtype=torch.uint8)), parameter(torch.zeros(32, 4))
    layer.weight_global_scale = parameter(torch.tensor(float("nan")))
    with pytest.raises(tw.InvalidArgument, match=r"weight_global_scale must be one positive number .got \[nan\]"):
        kernels.TilewrightNvFp4LinearKernel(None).process_weights_after_loading(layer)  # no other kernel has it


def test_formats_without_kernels_are_refused():
    able, why = kernels.TilewrightMxfp8LinearKernel.can_implement(types.SimpleNamespace(weight_shape=(64, 64)))
    assert able or "mxfp8" in why
    able, why = kernels.TilewrightMxfp8LinearKernel.can_implement(
        types.SimpleNamespace(weight_shape=(64, 64), bmm_batch_size=3)
    )
    assert (able, why) == (False, "bmm_batch_size is not supported: the weight must be one matrix")


# ---- experts


E, HIDDEN, WIDTH = 4, 128, 64


def moe_layer(**tensors):
    layer = torch.nn.Module()
    for name, tensor in tensors.items():
        layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    layer.activation, layer.local_num_experts = types.SimpleNamespace(value="silu"), E
    parallel = types.SimpleNamespace(ep_size=1, dp_size=1, enable_eplb=False)
    layer.moe_config = types.SimpleNamespace(moe_parallel_config=parallel, is_act_and_mul=True, in_dtype=torch.float32)
    return layer


def moe_reference(x, w13, w2, weights, ids):
    """w13 [E, 2 WIDTH, HIDDEN], w2 [E, HIDDEN, WIDTH] of float64."""
    out = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
    for t, row in enumerate(x.double()):
        for weight, e in zip(weights[t].double(), ids[t]):
            gate, up = (w13[e] @ row).chunk(2)
            out[t] += weight * (w2[e] @ (torch.nn.functional.silu(gate) * up))
    return out


def moe_case(kind):
    """A method, a loaded layer, what reads it, and the values [E, n, k] of both matrices."""
    torch.manual_seed(0)
    shapes = {"w13": (E, 2 * WIDTH, HIDDEN), "w2": (E, HIDDEN, WIDTH)}
    tensors, wants, method = {}, [], types.SimpleNamespace()
    for part, (experts_, n, k) in shapes.items():
        if kind == "float":
            tensors[f"{part}_weight"] = torch.randn(experts_, n, k)
            wants.append(tensors[f"{part}_weight"].double())
        elif kind.startswith("fp8"):
            codes = torch.randn(experts_, n, k).to(torch.float8_e4m3fn)
            scales = torch.rand((experts_, n, 1) if kind == "fp8" else ((experts_, 2) if part == "w13" else (experts_,))) + 0.5
            tensors[f"{part}_weight"], tensors[f"{part}_weight_scale"] = codes, scales
            wide = scales if kind == "fp8" else scales.reshape(experts_, -1, 1).repeat_interleave(n // max(scales[0].numel(), 1), 1)
            wants.append(codes.double() * wide.double())
        elif kind == "mxfp4":
            codes, exponents = torch.randint(0, 16, (experts_, n, k)), torch.randint(124, 129, (experts_, n, k // 32))
            tensors[f"{part}_weight_packed"] = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
            tensors[f"{part}_weight_scale"] = exponents.to(torch.uint8)
            wide = (exponents.double() - 127).exp2().repeat_interleave(32, -1)
            wants.append(torch.from_numpy(E2M1)[codes] * wide)
        else:
            each = [Layer(e, symmetric=kind != "awq", n=n, k=k) for e in range(experts_)]
            stacked = [awq(one) if kind == "awq" else gptq(one, 2) if kind == "gptq" else compressed(one, True) for one in each]
            for name in ("qweight", "qzeros", "scales") if kind != "compressed" else ("weight_packed", "weight_scale"):
                tensors[f"{part}_{name}"] = torch.stack([one[name] for one in stacked])
            wants.append(torch.stack([torch.from_numpy(one.weight) for one in each]))
    if kind == "gptq":
        method.quant_config = types.SimpleNamespace(quant_type=scalar_type(4, 8), desc_act=False)
    read = {"float": "_floats", "mxfp4": "_mxfp4", "awq": "_awq", "gptq": "_gptq", "compressed": "_words"}.get(kind, "_fp8")
    return method, moe_layer(**tensors), getattr(experts, read), wants


@pytest.mark.parametrize("kind", ["float", "fp8", "fp8_tensor", "compressed", "gptq", "awq", "mxfp4"])
def test_experts(kind):
    method, layer, read, (w13, w2) = moe_case(kind)
    wrapped = experts._wrapped(lambda self, layer: pytest.fail("vLLM's own"), read)
    wrapped(method, layer)
    wrapped(method, layer)  # once is enough
    assert method.moe_kernel.experts is layer.tilewright and not method.moe_kernel.is_monolithic
    assert all(p.numel() == 0 for p in layer.parameters(recurse=False))  # freed
    x, weights = torch.randn(5, HIDDEN), torch.rand(5, 2)
    ids = torch.tensor([[0, 3], [3, 0], [2, 3], [0, 2], [3, 2]])  # nobody chose expert 1
    y = method.moe_kernel.apply(x, layer.w13_weight, None, weights, ids, activation=layer.activation)
    want = moe_reference(x, w13, w2, weights, ids)
    close(y, values(want), 1e-4 if kind == "float" else 0.06)
    before = twt.engine().stats.compiled
    one = method.moe_kernel.apply(x[:1], None, None, weights[:1], ids[:1].to(torch.int32))
    close(one, values(want[:1]), 1e-4 if kind == "float" else 0.06)
    assert twt.engine().stats.compiled == before
    scaled = method.moe_kernel.apply(x, None, None, weights[:, :1], ids[:, :1], apply_router_weight_on_input=True)
    want = moe_reference(x * weights[:, :1], w13, w2, torch.ones(5, 1), ids[:, :1])
    close(scaled, values(want), 1e-4 if kind == "float" else 0.06)


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda layer: setattr(layer.moe_config.moe_parallel_config, "ep_size", 2), "use tensor parallelism"),
        (lambda layer: setattr(layer, "activation", types.SimpleNamespace(value="swigluoai")), "use silu, gelu, gelu_tanh"),
        (lambda layer: setattr(layer, "swiglu_limit", 7.0), "swiglu_limit=7.0 is not supported"),
    ],
)
def test_experts_that_stay_with_vllm(caplog, change, reason):
    done = []
    for _ in range(2):
        method, layer, read, _ = moe_case("float")
        change(layer)
        with caplog.at_level(logging.WARNING):
            experts._wrapped(lambda self, layer: done.append(layer), read)(method, layer)
        assert not hasattr(layer, "tilewright") and layer.w13_weight.numel()
    assert len(done) == 2
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("vLLM computes the experts of ") and reason in message


# ---- GGUF


def test_gguf_types():
    pytest.importorskip("gguf")
    assert [gguf.format_of(kind) for kind in (0, 1, 30, 2, 8, 12, 14, 39)] == [None, None, None, "q4_0", "q8_0", "q4_k", "q6_k", "ggml_mxfp4"]
    with pytest.raises(tw.Unsupported, match="type=i32 is not supported: no format"):
        gguf.format_of(26)
    data = torch.zeros(4, 256 // 32 * 18, dtype=torch.uint8)
    assert gguf.weight_of(data, 2, 256).shape == (4, 256)
    with pytest.raises(tw.Unsupported, match="tensor parallelism must not cut a block"):
        gguf.weight_of(data[:, :-9], 2, 256)


class PluginMethod:
    """What vllm-gguf-plugin's methods do."""

    def __init__(self, config=None):
        self.params_dtype = torch.float32

    def _materialize_gguf_parameters(self, layer):
        pass

    def tie_weights(self, layer, embed_tokens):
        return embed_tokens


def gguf_layer(parts, k):
    """parts: format and rows of the matrices that are fused, or one."""
    numbers = {"q4_k": 12, "q6_k": 14, "q8_0": 8, "f32": 0}
    layer, want, data = torch.nn.Module(), [], []
    for seed, (format, n) in enumerate(parts):
        torch.manual_seed(seed)
        floats = torch.randn(n, k)
        if format == "f32":
            data.append(floats)
            want.append(values(floats))
        else:
            encoded = twt.QuantizedWeight.from_float(floats, format)
            data.append(encoded.data)
            want.append(values(encoded.dequantize()))
    shards = list(range(len(parts))) if len(parts) != 3 else ["q", "k", "v"]
    fused = len(parts) > 1
    layer.bias = None
    layer.qweight = types.SimpleNamespace(
        data=None if fused else data[0],
        data_container=data[::-1] if fused else [],
        shard_id=shards[::-1] if fused else [],
        shard_id_map={shard: i for i, shard in enumerate(shards[::-1])},
        tensor_shape=(sum(n for _, n in parts), k),
    )
    kinds = {shard: numbers[format] for shard, (format, _) in zip(shards, parts)}
    layer.qweight_type = types.SimpleNamespace(weight_type=kinds[shards[0]], shard_weight_type=kinds)
    return layer, np.concatenate(want)


@pytest.mark.parametrize(
    "parts, made",
    [
        ([("q4_k", 32)], 1),
        ([("q4_k", 32), ("q4_k", 16), ("q6_k", 16)], 2),  # of two types
        ([("q8_0", 32), ("q8_0", 32)], 1),
        ([("f32", 16), ("q8_0", 16)], 2),
    ],
)
def test_gguf_layers(parts, made):
    pytest.importorskip("gguf")
    layer, want = gguf_layer(parts, 256)
    method = gguf._linear_method(PluginMethod)()
    method.process_weights_after_loading(layer)
    method.process_weights_after_loading(layer)
    assert len(layer.tilewright) == made and layer.qweight is None
    x, bias = torch.randn(3, 256), torch.randn(len(want))
    close(method.apply(layer, x), values(x) @ want.T, 2e-2)
    close(method.apply(layer, x, bias), values(x) @ want.T + values(bias), 2e-2)


def test_gguf_embeddings():
    pytest.importorskip("gguf")
    layer, want = gguf_layer([("q8_0", 64)], 256)
    method = gguf._embedding_method(PluginMethod)()
    method.tie_weights(torch.nn.Module(), layer)
    method.process_weights_after_loading(layer)
    tokens = torch.tensor([[3, 60], [0, 3]])
    assert np.array_equal(values(method.embedding(layer, tokens)), want[tokens.numpy()].astype(np.float32))
    assert len(layer.tilewright) == 1  # prepared while the model loads
    x = torch.randn(3, 256)
    close(method.apply(layer, x), values(x) @ want.T, 2e-2)


# ---- floats


def load(layer, tensor, *shard):
    layer.weight.weight_loader(layer.weight, tensor, *shard)


def finished(layer):
    layer.quant_method.process_weights_after_loading(layer)
    layer.quant_method.process_weights_after_loading(layer)  # vLLM may, after it has loaded weights again
    return layer


def test_floats(empty_lists):
    tilewright.vllm.register()
    cls = quantization.get_quantization_config("tilewright")
    assert cls is TilewrightConfig and cls.get_config_filenames() == [] and cls.get_min_capability() == 75
    weight, x = torch.randn(48, 64).half(), torch.randn(3, 64).half()
    for rank in range(2):
        with process(rank, 2, tilewright={"weight": "q8_0", "activation": "q8_1"}):
            layer = layers.ColumnParallelLinear(64, 48, params_dtype=torch.float16, quant_config=TilewrightConfig())
        load(layer, weight)
        half = twt.QuantizedLinear.from_float(weight[24 * rank : 24 * rank + 24], format="q8_0", activation="q8_1")
        assert torch.equal(finished(layer)(x)[0], half(x))
    with process():
        layer = layers.ColumnParallelLinear(64, 48, quant_config=TilewrightConfig(), params_dtype=torch.float16)
    load(layer, weight)
    assert finished(layer).tilewright.weight.format == "q4_0"
    assert layer.tilewright.layers[0].activation == "q8_1"  # the CPU's kernels need one


def test_rules_and_modules_to_not_convert():
    rules = [["*.down_proj", {"weight": "q8_0"}], ["*.k_proj", {"weight": "q4_k"}], ["*.gate", None]]
    rules.append(["*", {"weight": "q5_0"}])
    config = TilewrightConfig.from_config({"rules": rules, "modules_to_not_convert": ["router"]})
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj"]}
    layer = layers.LinearBase.__new__(layers.LinearBase)
    with process():
        for name, wanted in (("m.down_proj", "q8_0"), ("m.up", "q5_0"), ("m.gate", None), ("m.router", None)):
            assert getattr(config.get_quant_method(layer, name), "options", {}).get("weight") == wanted
        with pytest.raises(tw.Unsupported, match="m.qkv_proj .*layers that vLLM fuses must be quantized alike"):
            config.get_quant_method(layer, "m.qkv_proj")
        assert config.get_quant_method(torch.nn.Embedding(1, 1), "m.up") is None


def test_names_are_mapped():
    mapper = types.SimpleNamespace(apply_list=lambda names: ["language_model." + name for name in names])
    config = TilewrightConfig({"modules_to_not_convert": ["a"]})
    config.apply_vllm_mapper(mapper)
    layer = layers.LinearBase.__new__(layers.LinearBase)
    with process():
        kinds = [type(config.get_quant_method(layer, name)) for name in ("language_model.a", "a")]
    assert [kind is layers.UnquantizedLinearMethod for kind in kinds] == [True, False]


def test_refused_options(empty_lists):
    tilewright.vllm.register()
    layer = layers.LinearBase.__new__(layers.LinearBase)
    with process(tilewright={"weights": "q4_0"}), pytest.raises(tw.InvalidArgument, match="a dict of weight.*got .*weights"):
        TilewrightConfig().get_quant_method(layer, "a")
    with process(tilewright={"activation": "q9"}), pytest.raises(tw.InvalidArgument, match="q9"):
        one = layers.ReplicatedLinear(64, 16, quant_config=TilewrightConfig())
        finished(one)
    with pytest.raises(tw.Unsupported, match="source=gptq is not supported"):
        TilewrightConfig({"source": "gptq"})
    with pytest.raises(tw.InvalidArgument, match="modules_to_not_convert must be names of modules"):
        TilewrightConfig({"modules_to_not_convert": [3]})


# ---- the process


@pytest.mark.parametrize(
    "name, text, wanted",
    [
        ("GOMP_CPU_AFFINITY", "0 3 5", {0, 3, 5}),
        ("KMP_AFFINITY", "granularity=fine,explicit,proclist=[1,2]", {1, 2}),
        ("OMP_PLACES", "{0,1,7}", {0, 1, 7}),
        ("OMP_PLACES", "cores", set()),
        ("GOMP_CPU_AFFINITY", "", set()),
    ],
)
def test_cpus_that_vllm_gives(monkeypatch, name, text, wanted):
    for each in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, text)
    assert prepared._cpus() == wanted


def test_threads_start_on_all_of_them(monkeypatch):
    import os

    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("this process may use one CPU only")
    first = min(before)
    monkeypatch.setenv("GOMP_CPU_AFFINITY", " ".join(map(str, sorted(before))))
    os.sched_setaffinity(0, {first})
    try:
        with prepared.all_cpus():
            assert os.sched_getaffinity(0) == before
        assert os.sched_getaffinity(0) == {first}
        monkeypatch.setenv("GOMP_CPU_AFFINITY", "99999")
        with prepared.all_cpus():
            assert os.sched_getaffinity(0) == {first}
    finally:
        os.sched_setaffinity(0, before)


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file" / "kernels.db"))
    monkeypatch.setattr(prepared, "_ready", False)
    before = twt.engine()
    twt.set_engine(None)
    try:
        with caplog.at_level(logging.WARNING):
            prepared.ready()
            prepared.ready()
        assert twt.engine() is not before
    finally:
        twt.set_engine(before)
    (message,) = [record.getMessage() for record in caplog.records]
    assert re.search("cache.*file.*keeps its cache in memory", message)
