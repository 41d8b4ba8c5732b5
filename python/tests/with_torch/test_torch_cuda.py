# SPDX-License-Identifier: Apache-2.0
"""The operators' CUDA side. Most of it runs here without a GPU: kernels are replaced by the library's computation on
the host, which gets the addresses that a kernel would; one test goes through the real library to the driver double.
Both implementations of linear and conv are tested so, that of Python and libtilewright_torch, whose CUDA kernels are called with
tensors of the CPU. What needs a device is marked and skipped without one."""

from __future__ import annotations

import copy
import ctypes
import itertools
import math
import os
import pathlib
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
from conftest import LIBRARY, NVRTC, PACKAGE, needs_nvrtc
from torch_support import assert_close, expected, values

# isort: split
import torch

import tilewright as tw
import tilewright.torch as twt
from tilewright.torch import _cpu, _cuda, _stable, ops
from tilewright.torch._spec import gemm_text

N, K = 128, 512
INDEX = -1  # of the CPU's tensors
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


class HostLayer:
    """A Layer of a GPU as the library describes it, whose launches compute on the host: the cast's and the gemm's, or
    the fused one's."""

    def __init__(self, problem, index, x_from):
        _cuda.refuse_capture(index, str(problem))
        self.problems = tw.layer_problems(problem, _cuda.device(index).arch, x_from=x_from, pack=False)
        fields = self.problems.main.fields
        extents = (fields.get("n"), *fields.get("in", "").split("x")) if problem.op == "conv" else ()
        self.pixels = math.prod(map(int, extents))
        self.number = next(_numbers)
        _prepared[self.number] = self

    def _open(self):
        return types.SimpleNamespace(value=self.number)

    def scratch_bytes(self, rows):
        cast = self.problems.cast
        if cast is None or rows <= self.problems.few:
            return 0
        return sum(b.bytes + 256 for b in cast.with_rows(rows).buffers if b.name.startswith("y."))

    def launches(self, args, rows, scratch):
        """The problems of one launch, and the addresses of their operands."""
        found = self.problems
        given = {name: getattr(args, name) for name, _ in args._fields_ if name not in ("struct_size", "m")}
        if rows <= found.few:
            return [(found.fused.with_rows(rows), given)]
        main = found.main if found.main.op == "conv" else found.main.with_rows(rows)
        if found.cast is None:
            return [(main, given)]
        cast = found.cast.with_rows(rows)
        at, y = scratch, {"global": args.x.global_scale}
        for buffer in cast.buffers:
            operand, _, stream = buffer.name.partition(".")
            if operand == "y" and stream != "global":
                y[stream] = at
                at += (buffer.bytes + 255) // 256 * 256
        x = tw._c.Operand(y.get("data"), y.get("scales"), y["global"])
        return [(cast, {"x": args.x, "y": x}), (main, {**given, "x": x})]


class Launches(list):
    """The problems that were launched, with the rows; `capturing` and `stream` are the test's to set. linear() and conv()
    are the implementations under test; `by_python` counts how often libtilewright_torch left it to Python."""

    capturing = False
    stream = 0
    cpp = False
    by_python = 0
    expected_failure = False

    def layer(self, function, use, stream, args, scratch=None):
        """A launch of a HostLayer; of another, a CPU's, the library's."""
        if not isinstance(use, HostLayer):
            return _launch_layer(function, use, stream, args, scratch)
        assert stream == self.stream
        kind = {"tw_layer_launch_gemm": tw._c.GemmArgs, "tw_layer_launch_conv": tw._c.ConvArgs}[function]
        args = kind.from_buffer_copy(args)
        rows = args.m if function == "tw_layer_launch_gemm" else use.pixels
        room = scratch.data_ptr() if isinstance(scratch, torch.Tensor) else scratch
        for problem, given in use.launches(args, rows, room):
            self.append((problem, problem.rows if problem.op == "conv" else rows))
            self.compute(problem, given)

    def launch(self, use, stream, rows, addresses, **values):
        """Of a Kernel: computes on the host."""
        assert stream == self.stream and not values
        problem = use.subject.with_rows(rows)
        self.append((problem, problem.rows))
        missing = {buffer.name: buffer.optional for buffer in problem.buffers if buffer.name not in addresses}
        assert all(missing.values()), missing
        factor = torch.zeros(1)  # what a pack has no part in
        problem.compute({**addresses, **dict.fromkeys(missing, factor.data_ptr())})

    def compute(self, problem, args):
        given = {}
        for buffer in problem.buffers:
            operand, _, stream = buffer.name.partition(".")
            place = args[operand]
            if isinstance(place, tw._c.Operand):
                place = getattr(place, "global_scale" if stream == "global" else stream)
            if buffer.name == "workspace":
                continue  # the host needs none
            assert place is not None, f"{buffer.name} is missing"
            given[buffer.name] = place
        problem.compute(given)


_launch_layer = _cuda.launch_layer


def in_cpp(name):
    """The kernel of CUDA tensors, called as ops.linear() and ops.conv() call it."""

    def call(x, weight, *rest):
        try:
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
            return getattr(torch.ops.tilewright, name).default.redispatch(keys, x, list(weight), *rest)
        except RuntimeError as error:
            raise _cuda.cause(error) from None

    return call


_numbers = itertools.count(1)
_prepared = {}


@pytest.fixture(scope="module")
def bound():
    """libtilewright_torch with launches that compute on the host: of the Launches in `bound.seen`."""
    if _stable.info().ops != "stable":
        pytest.skip(f"needs libtilewright_torch: {_stable.info().why}")
    state = types.SimpleNamespace(seen=None)

    def called(name, kind):
        def launch(layer, stream, args, scratch):
            try:
                state.seen.layer(name, _prepared[layer], stream or 0, args.contents, scratch)
                return 0
            except BaseException as error:
                state.raised = error
                return 1

        at = ctypes.c_void_p
        return ctypes.CFUNCTYPE(ctypes.c_int32, at, at, ctypes.POINTER(kind), at)(launch)

    def current_stream(device, stream):
        stream[0] = state.seen.stream or None
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    scratch = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64)
    state.functions = (
        called("tw_layer_launch_gemm", tw._c.GemmArgs),
        called("tw_layer_launch_conv", tw._c.ConvArgs),
        scratch(lambda layer, rows: _prepared[layer].scratch_bytes(rows)),
        kind(current_stream),
    )
    _stable.bind(*state.functions)
    yield state
    _stable.forget()
    _stable._library.tilewright_torch_bind(_stable._Functions())  # as it was
    _stable._bound = False


@pytest.fixture(params=["python", "stable"])
def launches(request, monkeypatch):
    """Kernels that compute on the host."""
    seen = Launches()
    seen.linear, seen.conv = _cuda.linear, _cuda.conv
    if request.param == "stable":
        bound = request.getfixturevalue("bound")
        bound.seen, bound.raised = seen, None
        seen.linear, seen.conv, seen.cpp = in_cpp("linear"), in_cpp("conv"), True
        _stable.forget()

        def counted(function):
            def call(*args):
                seen.by_python += 1
                return function(*args)

            return call

        for name in ("linear", "conv"):
            monkeypatch.setattr(_cuda, name, counted(getattr(_cuda, name)))
    monkeypatch.setattr(_cuda, "_launch", seen.launch)
    monkeypatch.setattr(_cuda, "launch_layer", seen.layer)
    monkeypatch.setattr(_cuda, "layer", HostLayer)
    monkeypatch.setattr(_cuda, "index_of", lambda x: INDEX)
    monkeypatch.setattr(_cpu, "has", lambda x: False)
    monkeypatch.setattr(_cuda, "_stream", lambda index: seen.stream)
    monkeypatch.setattr(_cuda, "_capturing", lambda index: seen.capturing)
    monkeypatch.setattr(_cuda, "_empty", lambda shape, dtype, index: torch.empty(shape, dtype=dtype))
    monkeypatch.setattr(_cuda, "device", lambda index: types.SimpleNamespace(arch="sm_90a", name="host"))
    for name in ("_plans", "_conv_plans", "_kernels"):
        monkeypatch.setattr(_cuda, name, {})
    engine = tw.Engine(cache=":memory:")

    def prepare(problem, device):
        number = next(_numbers)
        _prepared[number] = types.SimpleNamespace(subject=problem, _open=lambda: number)
        return _prepared[number]

    monkeypatch.setattr(engine, "prepare", prepare)
    twt.set_engine(engine)
    yield seen
    twt.set_engine(None)
    if seen.cpp and bound.raised is not None and not seen.expected_failure:
        raise bound.raised


def gemm(w, x, y="f16", **fields):
    return gemm_text(x, w, y, N, K, **fields), twt.quantize(torch.randn(N, K), w)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("w", "x", "dtype"),
    [
        ("q4_0", "q8_1", F32),
        ("q4_0", "f16", F16),
        ("q4_k", "bf16", F32),
        ("nvfp4", "e4m3_row", BF16),
        ("nvfp4", "e4m3_tensor", F16),
        ("int4_g128", "int8_row", F16),
        ("e4m3_row", "bf16", BF16),
    ],
)
def test_linear(launches, w, x, dtype, packed):
    text, weight = gemm(w, x, bias="f16")
    bias = torch.randn(N).half()
    streams, problem = weight, text
    if packed:
        problem = gemm_text(x, w, "f16", N, K, bias="f16", pack="tiles")
        streams = twt.pack(weight, problem)
    for rows in (1, 2, 4, 5, 9):
        given = torch.randn(rows, K).to(dtype)
        launches.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = launches.linear(given, streams, bias, problem)
        launched = list(launches)  # without the CPU's
        want = torch.ops.tilewright.linear(given, weight, bias, text)
        assert (y.float() - want.float()).abs().max() <= 2.0**-7 * want.float().abs().max()
        assert_close(y, expected(given, values(twt.dequantize(weight, w, N, K)), bias, x, F16))
        gemms = [(p, m) for p, m in launched if p.op == "gemm"]
        assert [m for _, m in gemms] == [rows]
        fused = x == "q8_1" and rows <= (1 if packed else 4)
        assert gemms[0][0].fields.get("x_from") == ({F32: "f32", F16: "f16", BF16: "bf16"}[dtype] if fused else None)
        casts = [p for p, _ in launched if p.op == "cast"]
        assert len(casts) == (0 if fused or x in ("f16", "bf16") else 1)
        assert "workspace=34603008" in str(gemms[0][0]) and "weights=constant" in str(gemms[0][0])
    if launches.cpp:  # the first call prepares; conversions and a factor of the tensor are PyTorch's arithmetic
        converted = x == "e4m3_tensor" or (x in ("f16", "bf16") and x != {F16: "f16", BF16: "bf16"}.get(dtype))
        assert launches.by_python == (5 if converted else 1)


def test_a_factor_that_divides(launches):
    text, weight = gemm("nvfp4", "e4m3_tensor", "f32", global_="div")
    weight[2] = 1 / weight[2]
    given = torch.randn(6, K)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = launches.linear(given, weight, None, text)
    want = torch.ops.tilewright.linear(given, weight, None, text)
    assert torch.allclose(y, want, rtol=1e-4, atol=1e-4)


def test_shapes_and_strides(launches):
    text, weight = gemm("q8_0", "q8_1", "f32")
    base = torch.randn(4, 2 * K + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (
            base[:, 1 : K + 1],
            base[::2, :K],
            torch.randn(K, 6).t(),
            torch.randn(K).expand(5, K),
            torch.randn(K),
        ):
            y = launches.linear(x, weight, None, text)
            assert_close(y, expected(x, values(twt.dequantize(weight, "q8_0", N, K)), None, "q8_1"))
        launches.clear()
        for shape in ((0, K), (3, 0, K)):
            assert launches.linear(torch.empty(shape), weight, None, text).shape == (*shape[:-1], N)
        assert not launches
        with pytest.raises(tw.InvalidArgument, match="x must .*got shape"):
            launches.linear(torch.randn(2, K + 1), weight, None, text)
    if launches.cpp:  # dense rows of any number of dimensions are its own; views and what is empty are not
        before = launches.by_python
        for x in (torch.randn(K), torch.randn(2, 1, 3, K), torch.randn(1, K)[:, :]):
            y = launches.linear(x, weight, None, text)
            assert_close(y, expected(x, values(twt.dequantize(weight, "q8_0", N, K)), None, "q8_1"))
        assert launches.by_python == before
        launches.linear(base[:, 1 : K + 1], weight, None, text)
        assert launches.by_python == before + 1


BAD = {
    "x's columns": (lambda x, w, b: (x[:, :-32].contiguous(), w, b), "x must have a last dimension of 512.*got shape .3, 480."),
    "x's dtype": (lambda x, w, b: (x.double(), w, b), "x must .*got dtype torch.float64"),
    "no dimension": (lambda x, w, b: (x[0, 0].clone(), w, b), "x must .*got shape .."),
    "a stream too few": (lambda x, w, b: (x, w[:1], b), "weight must have 2 .got 1 tensors.: data, scales"),
    "a stream too many": (lambda x, w, b: (x, [*w, w[0]], b), "weight must .*got 3 tensors"),
    "no stream": (lambda x, w, b: (x, [], b), "weight must .*got 0 tensors"),
    "bytes": (lambda x, w, b: (x, [w[0][:-1].clone(), w[1]], b), "weight .data. must be 65536 bytes.*got 65535 bytes"),
    "a stream's dtype": (lambda x, w, b: (x, [w[0].view(torch.int8), w[1]], b), "weight .data. must .*got dtype torch.int8"),
    "strides": (lambda x, w, b: (x, [w[0].repeat_interleave(2)[::2], w[1]], b), "weight .data. must .*got strides"),
    "another device": (lambda x, w, b: (x, [w[0].to("meta"), w[1]], b), "weight .data. must be on cpu.*got on meta"),
    "no bias": (lambda x, w, b: (x, w, None), "bias must .*got None"),
    "the bias's dtype": (lambda x, w, b: (x, w, b.float()), "bias must .*dtype torch.float32"),
    "the bias's shape": (lambda x, w, b: (x, w, b[:, None]), "bias must .*got shape .128, 1."),
    "the bias's device": (lambda x, w, b: (x, w, b.to("meta")), "bias must .*got on meta"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit(launches, case):
    """Of a problem that was prepared, as most are."""
    text, weight = gemm("int8_row", "f16", bias="f16")
    x, bias = torch.randn(3, K).half(), torch.randn(N).half()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        launches.linear(x, weight, bias, text)
        launches.clear()
        change, message = BAD[case]
        with pytest.raises(tw.InvalidArgument, match=message):
            launches.linear(*change(x, weight, bias), text)
        assert not launches
        with pytest.raises(tw.TilewrightError, match="k must .*got 33"):
            launches.linear(x, weight, bias, "gemm x=f16 w=q4_0 y=f32 n=8 k=33")


def test_a_launch_that_fails(launches, monkeypatch):
    """C++ leaves it to Python, which says why."""
    text, weight = gemm("int8_row", "f16")
    x = torch.randn(3, K).half()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        launches.linear(x, weight, None, text)

    def fail(*args):
        raise tw.DriverFailed("cuLaunchKernelEx", "719", "CUDA_ERROR_LAUNCH_FAILED")

    monkeypatch.setattr(launches, "layer", fail)
    monkeypatch.setattr(_cuda, "launch_layer", fail)
    with pytest.raises(tw.DriverFailed, match="LAUNCH_FAILED") as caught:
        launches.linear(x, weight, None, text)
    assert caught.value.code == "driver_failed"
    if launches.cpp:
        launches.expected_failure = True


def test_threads(launches):
    """Calls while plans are forgotten and prepared again."""
    from concurrent.futures import ThreadPoolExecutor

    text, weight = gemm("int8_row", "int8_row", "f32")
    inputs = [torch.randn(3, K) for _ in range(24)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = [launches.linear(x, weight, None, text) for x in inputs]

        def call(i):
            if i % 5 == 0:
                _cuda.forget_plans()
            return launches.linear(inputs[i], weight, None, text)

        with ThreadPoolExecutor(4) as pool:
            got = list(pool.map(call, range(24)))
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_prepared_once(launches, monkeypatch):
    text = gemm_text("f16", "q4_0", "f16", N, K, pack="tiles")
    tiles = twt.pack(twt.quantize(torch.randn(N, K), "q4_0"), text)
    prepared = []
    monkeypatch.setattr(_cuda, "layer", lambda *args: prepared.append(args) or HostLayer(*args))
    for rows in (1, 2, 300):
        launches.linear(torch.randn(rows, K).half(), tiles, None, text)
    assert len(prepared) == 1
    _cuda.forget_plans()
    launches.linear(torch.randn(1, K).half(), tiles, None, text)
    assert len(prepared) == 2


def test_captures(launches):
    text = gemm_text("q8_1", "q4_0", "f16", N, K, pack="tiles")
    tiles = twt.pack(twt.quantize(torch.randn(N, K), "q4_0"), text)
    x = torch.randn(3, K).half()
    launches.capturing = True
    with pytest.raises(tw.WouldTune, match=r"problem must .*got gemm .*call tilewright.torch.warm\(model\) first"):
        launches.linear(x, tiles, None, text)
    launches.capturing = False
    _cuda.plan(text, INDEX, torch.float16)
    launches.capturing, launches.stream = True, 7
    launches.linear(x, tiles, None, text)
    launches.capturing = False


def test_a_warning_for_weights_as_stored(launches):
    text, weight = gemm("q4_0", "f16")
    with pytest.warns(UserWarning, match="faster on tiles"):
        launches.linear(torch.randn(2, K).half(), weight, None, text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launches.linear(torch.randn(2, K).half(), weight, None, text)
        plain, weight = gemm("q8_1", "f16")  # has no tiles
        launches.linear(torch.randn(2, K).half(), weight, None, plain)


@pytest.mark.parametrize("w", [f.name for f in tw.formats() if f.name != "int32"])
def test_formats(launches, w):
    x = torch.randn(N, K)
    x[0, 3] = float("nan")
    for dtype in (F32, BF16):
        mine = ops._quantize_cuda(x.to(dtype), w, "")
        want = twt.quantize(x.to(dtype), w)
        assert all(torch.equal(a, b) for a, b in zip(mine, want)), w
        back = ops._dequantize_cuda(want, w, N, K, dtype)
        wanted = twt.dequantize(want, w, N, K, dtype)
        assert torch.equal(back.view(torch.uint8), wanted.view(torch.uint8)) or torch.equal(back[1:], wanted[1:])
    zero = torch.zeros(N, K)
    assert all(torch.equal(a, b) for a, b in zip(ops._quantize_cuda(zero, w, ""), twt.quantize(zero, w)))


@pytest.mark.parametrize("w", ["q4_0", "nvfp4", "e4m3_row", "mxfp4"])
def test_tiles_and_gradients(launches, w):
    weight = twt.quantize(torch.randn(N, K), w)
    text = gemm_text("bf16", w, "bf16", N, K, pack="tiles", alpha=0.5)
    tiles = ops._pack_cuda(weight, text)
    assert all(torch.equal(a, b) for a, b in zip(tiles, twt.pack(weight, text)))
    assert all(torch.equal(a, b) for a, b in zip(ops._unpack_cuda(tiles, text), weight))
    dy = torch.randn(2, 3, N).bfloat16()
    got = _cuda.linear_grad(dy, tiles, text, F32)
    want = torch.ops.tilewright.linear_grad(dy, tiles, text, F32)
    assert got.dtype == F32 and (got - want).abs().max() < 0.02 * want.abs().max()
    assert _cuda.linear_grad(dy[:0], tiles, text, F32).shape == (0, 3, K)


def test_modules_arrange_their_weights(launches):
    layer = twt.QuantizedLinear.from_linear(torch.nn.Linear(K, N), "q4_0", "q8_1")
    stored, state = layer.weight.streams, layer.state_dict()
    layer.warm(F16)
    assert layer.weight.tiles == "q8_1" and len(layer.weight.streams) == 2
    assert [plan.layer.problems.main.fields["pack"] for plan in _cuda._plans.values()] == ["tiles"]
    x = torch.randn(3, K)
    layer.arrange(F32)
    assert_close(layer(x), expected(x, values(layer.dequantize()), layer.bias, "q8_1"))
    after = layer.state_dict()
    assert list(after) == list(state) and all(torch.equal(after[key], state[key]) for key in state)
    other = copy.deepcopy(layer)
    assert other.weight.tiles is None and torch.equal(other.weight.data, stored[0])
    other.load_state_dict(after)
    layer.load_state_dict(state)
    assert layer.weight.tiles is None and torch.equal(layer.weight.data, stored[0])
    layer.arrange(F16)
    layer.float()  # on the CPU again, as it were
    assert layer.weight.tiles is None and torch.equal(layer.weight.data, stored[0])
    wide = twt.QuantizedLinear.from_linear(torch.nn.Linear(K, N), "q4_0")
    wide.arrange(F16)
    assert wide.weight.tiles == "f16"
    with pytest.raises(
        tw.InvalidArgument, match="x must be one that w is arranged for .tiles for x=f16.*got dtype torch.bfloat16.*warm"
    ):
        wide(torch.randn(2, K).bfloat16())  # on a GPU it would be arranged
    wide.arrange(F32)  # no tiles for float32
    assert wide.weight.tiles is None
    launches.capturing = True
    with pytest.raises(tw.WouldTune, match="call tilewright.torch.warm"):
        wide.arrange(BF16)
    launches.capturing = False
    wide.arrange(BF16)
    assert wide.weight.tiles == "bf16" and torch.equal(wide.weight.stored()[0], wide.state_dict()["weight.data"])


@needs_nvrtc
@pytest.mark.parametrize("implementation", ["python", "stable"])
def test_through_the_library(double, gpu, cache, monkeypatch, implementation, request):
    """Preparation and launches of the real library, which checks what it is given; the double counts them."""
    memory = []

    def empty(shape, dtype, index=0):
        count = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
        memory.append(gpu.memory(max(count, 1)))
        buffer = (ctypes.c_char * memory[-1].size).from_address(memory[-1].pointer)
        return torch.frombuffer(buffer, dtype=dtype, count=int(np.prod(shape))).reshape(shape)

    def on_gpu(tensor):
        return empty(tensor.shape, tensor.dtype).copy_(tensor)

    monkeypatch.setattr(_cpu, "has", lambda x: False)
    for name, value in (("index_of", lambda x: INDEX), ("_stream", lambda i: 0), ("_capturing", lambda i: False)):
        monkeypatch.setattr(_cuda, name, value)
    monkeypatch.setattr(_cuda, "_empty", empty)
    monkeypatch.setattr(_cuda, "device", lambda index: gpu)
    for name in ("_plans", "_kernels"):
        monkeypatch.setattr(_cuda, name, {})
    linear = _cuda.linear
    if implementation == "stable":
        request.getfixturevalue("bound")
        _stable.forget()
        stream = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)(lambda index, stream: 0)
        c = tw._c.lib.cdll
        _stable.bind(c.tw_layer_launch_gemm, c.tw_layer_launch_conv, c.tw_layer_scratch_bytes, stream)
        request.addfinalizer(lambda: _stable.bind(*request.getfixturevalue("bound").functions))
        linear = in_cpp("linear")
    with tw.Engine(cache=cache, driver=gpu_driver(), nvrtc=NVRTC, jobs=2) as engine:
        twt.set_engine(engine)
        try:
            text = gemm_text("int8_row", "int8_row", "f32", 40, 48, bias="f32")
            weight = [on_gpu(t) for t in twt.quantize(torch.randn(40, 48), "int8_row")]
            x, bias = on_gpu(torch.randn(3, 48)), on_gpu(torch.randn(40))
            double.on_launch(lambda launch: None)
            before = double.launches()
            for calls in (1, 2):
                assert linear(x, weight, bias, text).shape == (3, 40)
                assert double.launches() - before == 2 * calls
            with pytest.raises(tw.InvalidArgument, match="w.data"):
                linear(x, [torch.empty(40 * 48 + 1, dtype=torch.uint8)[1:], weight[1]], bias, text)
        finally:
            _cuda.forget_plans()
            _cuda.retired.clear()
            twt.set_engine(None)


def run(code, **environment):
    """Of a process of its own."""
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE), "TILEWRIGHT_LIBRARY": LIBRARY or ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


REPORT = """
import torch, tilewright.torch as twt
print(twt.info().ops, "|", twt.info().library, "|", twt.info().why)
for name in ("linear", "conv"):
    print([line for line in torch._C._dispatch_dump("tilewright::" + name).splitlines() if line.startswith("CUDA")])
layer = twt.QuantizedLinear(64, 32)
assert layer(torch.ones(2, 64)).shape == (2, 32)
"""


def test_info(bound):
    out = run(REPORT)
    assert out.startswith("stable |") and "| None" in out and out.count("torch_ops/ops.cpp") == 2


def test_the_fall_back_on_request():
    out = run(REPORT, TILEWRIGHT_TORCH_OPS="python")
    assert out.startswith("python |") and "TILEWRIGHT_TORCH_OPS is python" in out and out.count("ops.py") == 2


@pytest.mark.parametrize(
    ("content", "why"), [(None, "there is no such file"), (b"", "file too short"), (b"\x7fELF" * 99, "")]
)
def test_the_fall_back_without_a_library_that_loads(tmp_path, content, why):
    library = tmp_path / "libtilewright_c.so"
    library.symlink_to(pathlib.Path(LIBRARY).resolve())
    if content is not None:
        (tmp_path / "libtilewright_torch.so").write_bytes(content)
    out = run(REPORT, TILEWRIGHT_LIBRARY=str(library))
    assert out.startswith("python |") and why in out and str(tmp_path) in out and "ops.py" in out


def gpu_driver():
    from conftest import FAKE_CUDA

    return FAKE_CUDA


# ---- on a device

on_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@on_device
@pytest.mark.parametrize(
    ("w", "x"), [("q4_0", "q8_1"), ("nvfp4", "e4m3_row"), ("q4_k", None), ("int4_g128", "int8_row")]
)
def test_device_results(w, x):
    layer = twt.QuantizedLinear.from_linear(torch.nn.Linear(512, 256), w, x).half()
    on_gpu = copy.deepcopy(layer).cuda()
    for rows in (1, 3, 17, 130):
        given = torch.randn(rows, 512).half()
        want = layer(given).float()
        got = on_gpu(given.cuda()).cpu().float()
        assert (got - want).abs().max() < 0.02 * want.abs().max()


@on_device
def test_device_graph():
    layer = twt.QuantizedLinear.from_linear(torch.nn.Linear(512, 256).cuda().half(), "q4_0", "q8_1")
    x = torch.randn(4, 512, device="cuda").half()
    twt.warm(layer)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = layer(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    with torch.no_grad():
        assert torch.equal(y, layer(x))


@on_device
def test_device_compile():
    layer = twt.QuantizedLinear.from_linear(torch.nn.Linear(512, 256).cuda().half(), "q4_0", "q8_1")
    twt.warm(layer)
    x = torch.randn(4, 512, device="cuda").half()
    assert torch.equal(torch.compile(layer, fullgraph=True)(x), layer(x))


@on_device
def test_device_round_trip():
    layer = twt.QuantizedLinear.from_linear(torch.nn.Linear(512, 256), "q4_k", "q8_1")
    want = layer.state_dict()
    moved = layer.cuda().half()
    moved(torch.randn(2, 512, device="cuda").half())
    assert all(torch.equal(a.cpu(), b) for a, b in zip(moved.weight.stored(), (want["weight.data"],)))
