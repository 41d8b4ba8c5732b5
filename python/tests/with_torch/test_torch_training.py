# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training and loss scaling against PyTorch's own functions: tilewright.torch on the CPU, what the
library computes on the host, and the arguments that reach kernels."""

from __future__ import annotations

import copy
import ctypes
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# isort: split
import torch
from torch import nn
from torch.library import opcheck

import tilewright as tw
import tilewright.torch as twt
from tilewright.torch import _cuda
from tilewright.torch._spec import FORMATS

ATEN = torch.ops.aten
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CODES = [(-128, 127), (-127, 127), (0, 255), (-8, 7), (-7, 7), (0, 15), (-4, 3), (0, 7), (-2, 1), (0, 3), (-1, 1)]


def bits(t):
    return t.contiguous().view({2: torch.int16, 4: torch.int32}[t.element_size()])


def same_bits(a, b):
    """NaNs are one."""
    assert a.dtype == b.dtype and a.shape == b.shape
    nans = torch.isnan(a)
    assert torch.equal(nans, torch.isnan(b))
    assert torch.equal(bits(a)[~nans], bits(b)[~nans])


def samples(shape, scale, codes, dtype=torch.float32, seed=0):
    """Within the codes, halves between them, at their ends and beyond."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g) * scale * (codes[1] - codes[0]) * 0.4
    halves = torch.randint(-600, 600, shape, generator=g) / 2 * scale
    x = torch.where(torch.rand(shape, generator=g) < 0.3, halves, x)
    flat = x.view(-1)
    for i, v in enumerate((0.0, -0.0, 1e-41, math.nan, 1e9 * scale, -1e9 * scale)):
        if 7 * i < flat.numel():
            flat[7 * i] = v
    return x.to(dtype)


def on_host(x, scale, zero, codes, by_row=False, dy=None, learned=False):
    """By the library's own operation."""
    grad = None if dy is None else "learned" if learned else "straight"
    problem = tw.Problem.of(
        "fake_quant",
        x=FORMATS[x.dtype],
        rows=x.shape[0],
        cols=x.shape[1],
        qmin=codes[0],
        qmax=codes[1],
        scope="row" if by_row else None,
        grad=grad,
    )
    y = torch.empty_like(x)
    values = {"x": x, "y": y, "scale": scale, "zero_point": zero}
    if dy is not None:
        values["dy"] = dy
    dscale = torch.empty_like(scale)
    if learned:
        values["dscale"] = dscale
    problem.compute(values)
    check = problem.check(values)
    assert check.wrong is None, check.wrong
    return (y, dscale) if learned else y


# ---- fake quantization


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codes", CODES)
def test_fake_quantize_of_a_tensor(codes, dtype):
    for seed, (scale, zero) in enumerate([(0.037, codes[0]), (1.0, codes[1]), (2.0**-7, (codes[0] + codes[1]) // 2)]):
        x = samples((9, 64), scale, codes, dtype, seed).requires_grad_()
        want, mask = ATEN.fake_quantize_per_tensor_affine_cachemask(x.detach(), scale, zero, *codes)
        got = twt.fake_quantize(x, scale, zero, qmin=codes[0], qmax=codes[1])
        same_bits(got.detach(), want)
        by, zp = torch.tensor([scale]), torch.tensor([zero], dtype=torch.int32)
        same_bits(on_host(x.detach(), by, zp, codes), want)
        dy = samples((9, 64), 0.01, codes, dtype, seed + 9)
        dx = ATEN.fake_quantize_per_tensor_affine_cachemask_backward(dy, mask)
        same_bits(torch.autograd.grad(got, x, dy)[0], dx)
        same_bits(on_host(x.detach(), by, zp, codes, dy=dy), dx)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_fake_quantize_of_channels(dtype, axis):
    codes = (-8, 7)
    # Finite: of an infinite x PyTorch's CPU kernel for channels gives the least code, whatever its sign.
    x = samples((5, 6, 7), 0.1, codes, dtype, 3).clamp(-6e4, 6e4).requires_grad_()
    count = x.shape[axis]
    scale = torch.rand(count) * 0.2 + 0.01
    zero = torch.randint(-8, 8, (count,), dtype=torch.int32)
    want, mask = ATEN.fake_quantize_per_channel_affine_cachemask(x.detach(), scale, zero, axis % 3, *codes)
    got = twt.fake_quantize(x, scale, zero, qmin=-8, qmax=7, axis=axis)
    same_bits(got.detach(), want)
    dy = torch.randn(x.shape).to(dtype)
    dx = torch.autograd.grad(got, x, dy)[0]
    same_bits(dx, ATEN.fake_quantize_per_channel_affine_cachemask_backward(dy, mask))
    rows = x.detach().movedim(axis, 0).reshape(count, -1).contiguous()
    same_bits(on_host(rows, scale, zero, codes, True), want.movedim(axis, 0).reshape(count, -1).contiguous())


def test_infinities_are_limited_and_their_gradients_seen():
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0], requires_grad=True)
    y = twt.fake_quantize(x, 0.5, 1, qmin=-8, qmax=7)
    assert y.tolist() == [3.0, -4.5, -4.5, 0.0]
    dx = torch.autograd.grad(y, x, torch.tensor([1.0, math.inf, -1.0, math.inf]))[0]
    assert dx[0] == 0 and math.isnan(dx[1]) and math.copysign(1, dx[2]) == -1 and dx[3] == math.inf


@pytest.mark.parametrize("format", [f.name for f in tw.formats() if f.name != "int32"])
def test_fake_quantize_by_a_format(format):
    x = torch.randn(128, 256, requires_grad=True)
    y = twt.fake_quantize(x, format=format)
    streams = twt.quantize(x.detach(), format)
    same_bits(y.detach(), twt.dequantize(streams, format, 128, 256))
    dy = torch.randn_like(y)
    assert torch.equal(torch.autograd.grad(y, x, dy)[0], dy)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_fake_quantize_is_idempotent_and_near(data):
    qmin = data.draw(st.integers(-128, 200))
    qmax = data.draw(st.integers(qmin + 1, min(255, qmin + 255)))
    zero = data.draw(st.integers(qmin, qmax))
    scale = 2.0 ** data.draw(st.integers(-20, 20))  # products with it are exact
    x = torch.tensor(data.draw(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20)))
    y = twt.fake_quantize(x, scale, zero, qmin=qmin, qmax=qmax)
    assert torch.equal(twt.fake_quantize(y, scale, zero, qmin=qmin, qmax=qmax), y)
    limited = x.clamp((qmin - zero) * scale, (qmax - zero) * scale)
    assert bool(((y - limited).abs() <= scale / 2).all())


@pytest.mark.parametrize(
    "arguments, field",
    [
        ({}, "scale"),
        ({"scale": 1.0, "format": "q4_0"}, "scale"),
        ({"format": "q4_0", "axis": 0}, "format"),
        ({"scale": 0.0}, "scale"),
        ({"scale": -1.0}, "scale"),
        ({"scale": math.nan}, "scale"),
        ({"scale": math.inf}, "scale"),
        ({"scale": torch.tensor([0.0])}, "scale[0]"),
        ({"scale": torch.tensor([1.0, math.nan, 1.0]), "axis": 0}, "scale[1]"),
        ({"scale": torch.ones(2)}, "scale"),
        ({"scale": torch.ones(1, dtype=torch.float64)}, "scale"),
        ({"scale": "1"}, "scale"),
        ({"scale": 1.0, "zero_point": 8, "qmin": -8, "qmax": 7}, "zero_point[0]"),
        ({"scale": 1.0, "zero_point": -9, "qmin": -8, "qmax": 7}, "zero_point[0]"),
        ({"scale": 1.0, "zero_point": 1.5}, "zero_point"),
        ({"scale": 1.0, "zero_point": 1 << 40}, "zero_point"),
        ({"scale": 1.0, "qmin": -129}, "qmin"),
        ({"scale": 1.0, "qmin": 0, "qmax": 256}, "qmax"),
        ({"scale": 1.0, "qmin": 7, "qmax": 7}, "qmax"),
        ({"scale": 1.0, "axis": 2}, "axis"),
    ],
)
def test_what_fake_quantize_refuses(arguments, field):
    with pytest.raises(tw.InvalidArgument) as caught:
        twt.fake_quantize(torch.randn(3, 4), **arguments)
    assert caught.value.field == field, caught.value


def test_what_the_host_refuses():
    x = torch.randn(2, 4)
    with pytest.raises(tw.InvalidArgument, match=r"scale\[1\].*0") as caught:
        on_host(x, torch.tensor([1.0, 0.0]), torch.zeros(2, dtype=torch.int32), (-8, 7), True)
    assert caught.value.field == "scale[1]"
    with pytest.raises(tw.InvalidArgument) as caught:
        on_host(x, torch.tensor([1.0]), torch.tensor([8], dtype=torch.int32), (-8, 7))
    assert caught.value.field == "zero_point[0]"
    for text, field in (("qmin=-129", "qmin"), ("qmin=0 qmax=256", "qmax"), ("qmin=5 qmax=5", "qmax")):
        with pytest.raises(tw.InvalidArgument) as caught:
            tw.Problem(f"fake_quant x=f32 rows=1 cols=1 {text}")
        assert caught.value.field == field


# ---- learned step size


def paper(x, scale, zero, codes, dy, factor):
    """Esser et al., equations 2 and 3 with a zero point, in double precision, from codes of single precision."""
    v = (x.float() * (1 / scale)).double()
    code = v.round() + zero
    inside = (code >= codes[0]) & (code <= codes[1])
    slope = torch.where(inside, v.round() - v, code.clamp(*codes) - zero)
    terms = dy.double() * slope
    return terms.sum(-1) * factor, terms.abs().sum(-1) * abs(factor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codes", CODES)
def test_learned_step_of_a_tensor(codes, dtype):
    scale = torch.tensor([0.037], requires_grad=True)
    zero = max(codes[0], min(codes[1], 1))
    x = samples((6, 50), 0.037, codes, dtype, 5).nan_to_num(0.1).requires_grad_()
    dy = torch.randn(6, 50).to(dtype)
    y = twt.learned_step_quantize(x, scale, zero, qmin=codes[0], qmax=codes[1])
    dx, ds = torch.autograd.grad(y, (x, scale), dy)
    factor = 1 / math.sqrt(300 * max(codes[1], 1))
    want, size = paper(x.detach().reshape(1, -1), scale.detach(), zero, codes, dy.reshape(1, -1), factor)
    bound = 10 * 2.0**-24 * size
    assert abs(ds.double() - want) <= bound
    straight = twt.fake_quantize(x, scale.detach(), zero, qmin=codes[0], qmax=codes[1])
    same_bits(y.detach(), straight.detach())
    same_bits(dx, torch.autograd.grad(straight, x, dy)[0])
    on = (x.detach(), scale.detach(), torch.tensor([zero], dtype=torch.int32), codes)
    host_dx, host_ds = on_host(*on, dy=dy, learned=True)
    same_bits(host_dx, dx)
    assert abs(host_ds.double() - want) <= bound
    if dtype != torch.float32:
        return
    # PyTorch's own: of a code inside it computes ((code - zero) scale - x) / scale, with two roundings of x / scale.
    # Its backward pass rounds x / scale + zero, its forward pass x / scale: ties differ where the zero point is odd.
    v = x.detach() * (1 / scale.detach())
    dy = torch.where((v - v.round()).abs() == 0.5, 0.0, dy)
    dx, ds = torch.autograd.grad(
        twt.learned_step_quantize(x, scale, zero, qmin=codes[0], qmax=codes[1]), (x, scale), dy
    )
    s, z = torch.tensor([0.037], requires_grad=True), torch.tensor([float(zero)])
    xx = x.detach().clone().requires_grad_()
    theirs = torch._fake_quantize_learnable_per_tensor_affine(xx, s, z, codes[0], codes[1], factor)
    same_bits(theirs.detach(), y.detach())
    their_dx, their_ds = torch.autograd.grad(theirs, (xx, s), dy)
    same_bits(their_dx, dx)
    steps = (x.detach() / 0.037).abs().clamp(max=512).double()
    slack = (dy.double().abs() * (steps + 256)).sum() * factor * 2.0**-22
    assert abs(their_ds.double() - ds.double()) <= slack


def test_learned_step_of_channels():
    codes, zero = (-8, 7), torch.randint(-8, 8, (5,), dtype=torch.int32)
    scale = (torch.rand(5) * 0.2 + 0.05).requires_grad_()
    x, dy = torch.randn(3, 5, 40, requires_grad=True), torch.randn(3, 5, 40)
    y = twt.learned_step_quantize(x, scale, zero, qmin=-8, qmax=7, axis=1, factor=0.25)
    ds = torch.autograd.grad(y, scale, dy)[0]

    def rows(t):
        return t.detach().movedim(1, 0).reshape(5, -1).contiguous()

    want, size = paper(rows(x), scale.detach().reshape(-1, 1), zero.reshape(-1, 1), codes, rows(dy), 0.25)
    assert bool(((ds.double() - want).abs() <= 10 * 2.0**-24 * size).all())
    theirs = torch._fake_quantize_learnable_per_channel_affine(
        x.detach(), s := scale.detach().clone().requires_grad_(), zero.float(), 1, *codes, 0.25
    )
    assert torch.allclose(torch.autograd.grad(theirs, s, dy)[0], ds, rtol=1e-4, atol=1e-4)


def test_a_learned_step_finds_a_scale():
    torch.manual_seed(0)
    x = torch.randn(4096)
    scale = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([scale], lr=0.5)
    errors = []
    for _ in range(60):
        y = twt.learned_step_quantize(x, scale, qmin=-8, qmax=7)
        loss = (y - x).square().sum()
        errors.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        scale.grad /= 64  # the paper's factor leaves a gradient as large as a step needs
        optimizer.step()
    assert errors[-1] < errors[0] / 3 and 0.2 < float(scale.detach()) < 0.5


def test_what_a_learned_step_refuses():
    x = torch.randn(3, 4)
    for arguments, field in (
        ({"scale": 1.0}, "scale"),
        ({"scale": torch.ones(1), "factor": math.inf}, "factor"),
        ({"scale": torch.ones(2), "axis": 1}, "scale"),
        ({"scale": -torch.ones(4), "axis": 1}, "scale[0]"),
    ):
        with pytest.raises(tw.InvalidArgument) as caught:
            twt.learned_step_quantize(x, **arguments)
        assert caught.value.field == field


def test_operators():
    x, dy, scale = torch.randn(3, 8), torch.randn(3, 8), torch.rand(3) + 0.1
    zero = torch.zeros(3, dtype=torch.int32)
    ops = torch.ops.tilewright
    opcheck(ops.fake_quantize, (x, scale, zero, -8, 7))
    opcheck(ops.fake_quantize_grad, (dy, x, scale, None, -8, 7, True, 0.5))


# ---- loss scaling


def gradients(dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=g) * 3).to(dtype) for shape in ((3, 5), (1,), (0,), (17,), (4, 2, 3))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [65536.0, 1536.0, 1.0, 0.3])
@pytest.mark.parametrize("bad", [None, math.inf, -math.inf, math.nan])
def test_unscale_as_pytorch(dtype, scale, bad):
    ours = gradients(dtype)
    if bad is not None:
        ours[3][5] = bad
    theirs, found = copy.deepcopy(ours), torch.zeros(1)
    given = torch.tensor([scale])
    torch._amp_foreach_non_finite_check_and_unscale_(theirs, found, given.double().reciprocal().float())
    host = [t.clone() for t in ours]
    got = twt.unscale_(ours, given)
    assert got.dtype == torch.float32 and torch.equal(got, found)
    for a, b in zip(ours, theirs):
        same_bits(a, b)
    # The library's own computation, of pieces of one buffer.
    elements = sum(t.numel() for t in host)
    problem = tw.Problem.of("unscale", x=FORMATS[dtype], pieces=len(host), elements=elements)
    flat = torch.cat([t.reshape(-1) for t in host])
    x = torch.zeros(len(host) * elements, dtype=dtype)
    x[:elements] = flat
    ends = np.cumsum([0] + [t.numel() for t in host])
    table = np.array([[int(e) * dtype.itemsize, t.numel()] for e, t in zip(ends, host)])
    y, found_inf = torch.zeros_like(x), torch.zeros(1)
    values = {"x": x, "y": y, "table": table, "scale": given, "found_inf": found_inf}
    problem.compute(values)
    assert torch.equal(found_inf, found)
    same_bits(y[:elements], torch.cat([t.reshape(-1) for t in theirs]))
    assert problem.check(values).wrong is None
    before = {**values, "found_before": torch.ones(1)}
    problem.compute(before)
    assert float(found_inf) == 1 and problem.check(before).wrong is None
    found_inf.zero_()
    assert "found_inf = 0, expected 1" in problem.check(before).wrong


def test_found_inf_of_another_launch_is_kept():
    scale = torch.tensor([2.0])
    found = twt.unscale_([torch.tensor([math.inf])], scale)
    assert float(twt.unscale_(gradients(torch.float32), scale, found)) == 1
    assert float(twt.unscale_(gradients(torch.float32), scale, torch.zeros(1))) == 0


@pytest.mark.parametrize("growth, backoff, interval", [(2.0, 0.5, 3), (1.1, 0.7, 1), (4.0, 0.1, 2)])
def test_update_scale_as_pytorch(growth, backoff, interval):
    ours = [torch.tensor([1000.0]), torch.zeros(1, dtype=torch.int32)]
    theirs = [t.clone() for t in ours]
    host = [t.clone() for t in ours]
    problem = tw.Problem(f"update_scale growth={growth} backoff={backoff} interval={interval}")
    for step in range(40):
        found = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, math.nan][step % 6] if step < 24 else 0.0])
        torch._amp_update_scale_(*theirs, found, growth, backoff, interval)
        twt.update_scale_(*ours, found, growth, backoff, interval)
        new = [t.clone() for t in host]
        names = ("scale", "good_steps", "found_inf", "new_scale", "new_good_steps")
        problem.compute(dict(zip(names, (*host, found, *new))))
        host = new
        for a, b, c in zip(ours, theirs, host):
            assert torch.equal(a, b) and torch.equal(c, b)
    top = [torch.tensor([3e38]), torch.tensor([interval - 1], dtype=torch.int32)]
    twt.update_scale_(*top, torch.zeros(1), 2.0, backoff, interval)
    assert float(top[0]) == float(torch.tensor(3e38)) and int(top[1]) == 0


def train(scaler, steps=25):
    """The losses, scales and weights of a model whose gradients overflow now and then."""
    torch.manual_seed(1)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 8)).square().mean()
        if step % 9 == 4:
            loss = loss * 1e37
        scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)
        scaler.step(optimizer)
        scaler.update()
        seen.append((float(loss), scaler.get_scale()))
    return seen, [p.detach().clone() for p in model.parameters()], scaler.state_dict()


def test_grad_scaler_as_pytorch():
    fields = {"init_scale": 512.0, "growth_interval": 4}
    ours = train(twt.GradScaler(**fields))
    theirs = train(torch.amp.GradScaler("cpu", **fields))
    assert ours[0] == theirs[0]
    assert all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1]))
    assert ours[2] == theirs[2]
    assert {s for _, s in ours[0]} > {512.0}  # it has moved, both ways
    restored = twt.GradScaler()
    restored.load_state_dict(theirs[2])
    assert restored.state_dict() == theirs[2]


@pytest.mark.parametrize("kind", (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD))
def test_grad_scaler_with_fused_optimizers(kind):
    """They skip a step by themselves, by found_inf of shape []."""

    def train(scaler):
        torch.manual_seed(3)
        net = nn.Linear(8, 4)
        optimizer = kind(net.parameters(), lr=0.1, fused=True)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(net(torch.randn(5, 8)).square().sum()).backward()
            if step == 2:
                net.weight.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        return net.weight.detach(), scaler.get_scale()

    ours, theirs = train(twt.GradScaler("cpu", 1024.0)), train(torch.amp.GradScaler("cpu", 1024.0))
    assert torch.equal(ours[0], theirs[0]) and ours[1] == theirs[1] == 512.0


def test_grad_scaler_has_torchs_interface():
    ours, theirs = twt.GradScaler("cpu", 8.0, 3.0, 0.25, 7), torch.amp.GradScaler("cpu", 8.0, 3.0, 0.25, 7)
    assert ours.state_dict() == theirs.state_dict()
    public = {name for name in dir(theirs) if not name.startswith("_")}
    assert public <= set(dir(ours)), public - set(dir(ours))
    for scaler in (ours, theirs):
        scaler.set_growth_factor(4.0)
        scaler.set_backoff_factor(0.5)
        scaler.set_growth_interval(9)
        assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (4.0, 0.5, 9)
    for scaler in (ours, theirs):
        net = nn.Linear(2, 2).half()
        net.weight.grad = torch.ones_like(net.weight)
        scaler.scale(torch.ones(1))
        with pytest.raises(ValueError, match="(?i)float16|FP16"):
            scaler.unscale_(torch.optim.SGD(net.parameters(), 0.1))
    with pytest.raises(tw.InvalidArgument, match="device must .*got 1024.0.*init_scale is the second"):
        twt.GradScaler(1024.0)
    with pytest.raises(tw.InvalidArgument, match="one on cuda, the scaler's device"):
        twt.GradScaler("cuda").scale(torch.ones(1))
    with pytest.raises(tw.InvalidArgument, match="backoff_factor must .*got 2.0"):
        ours.set_backoff_factor(2.0)


def test_a_loss_of_half_precision_is_scaled_in_single():
    loss = torch.tensor(0.5, dtype=torch.float16)
    for scaler in (twt.GradScaler(), torch.amp.GradScaler("cpu")):
        scaled = scaler.scale([loss, (loss,)])
        assert scaled[0].dtype == scaled[1][0].dtype == torch.float32 and float(scaled[0]) == 32768


def test_a_disabled_grad_scaler_does_nothing():
    scaler = twt.GradScaler(enabled=False)
    assert train(scaler)[1] and scaler.get_scale() == 1.0 and scaler.state_dict() == {}


def test_what_loss_scaling_refuses():
    one, count = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    cases = [
        (lambda: twt.unscale_([], one), "tensors"),
        (lambda: twt.unscale_([torch.ones(2), torch.ones(2, dtype=torch.float64)], one), "tensors[1]"),
        (lambda: twt.unscale_([torch.ones(2)], one.double()), "scale"),
        (lambda: twt.unscale_([torch.ones(2)], torch.ones(2)), "scale"),
        (lambda: twt.unscale_([torch.ones(2)], one, torch.ones(2)), "found_inf"),
        (lambda: twt.update_scale_(one, one, one), "good_steps"),
        (lambda: twt.update_scale_(one, count, one, growth_factor=1.0), "growth_factor"),
        (lambda: twt.update_scale_(one, count, one, backoff_factor=1.0), "backoff_factor"),
        (lambda: twt.update_scale_(one, count, one, growth_interval=0), "growth_interval"),
        (lambda: twt.GradScaler(init_scale=0.0), "init_scale"),
        (lambda: twt.GradScaler(init_scale=1e300), "init_scale"),
        (lambda: twt.GradScaler().scale("loss"), "outputs"),
        (lambda: twt.GradScaler().update(), "update"),
        (lambda: twt.GradScaler().unscale_(torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)), "optimizer"),
        (lambda: twt.GradScaler().load_state_dict({"scale": 1.0}), "state"),
    ]
    for scale in (0.0, -1.0, math.inf, math.nan):
        cases.append((lambda scale=scale: twt.unscale_([torch.ones(2)], torch.tensor([scale])), "scale"))
    for action, field in cases:
        with pytest.raises(tw.InvalidArgument) as caught:
            action()
        assert caught.value.field == field, caught.value


def test_pieces():
    f16 = [(0x1000, 10), (0, 0), (0x2002, 3)]
    assert tw.unscale_pieces("f16", f16, 4).tolist() == [[0x1000, 4], [0x1008, 4], [0x1010, 2], [0x2002, 3]]
    assert tw.unscale_pieces("f32", [(0x1000, 20000)]).tolist() == [[0x1000, 8192], [0x9000, 8192], [0x11000, 3616]]
    for tensors, field in (
        ([], "tensors"),
        ([(0x1001, 1)], "tensors[0].data"),
        ([(0x1000, 1), (0, 1)], "tensors[1].data"),
        ([(0x1000, -1)], "tensors[0].elements"),
        ([np.zeros(3, "f2")], "tensors[0]"),
        ([(0x1000,)], "tensors[0]"),
        ([(0x1000, 1.5)], "tensors[0].elements"),
    ):
        with pytest.raises(tw.InvalidArgument) as caught:
            tw.unscale_pieces("f16", tensors)
        assert caught.value.field == field, caught.value
    with pytest.raises(tw.TooLarge):
        tw.unscale_pieces("f16", [(0x1000, 1 << 62)])
    with pytest.raises(tw.Unsupported):
        tw.unscale_pieces("int8", [(0x1000, 1)])


# ---- the CUDA side, its kernels replaced by the library's computation on the host


@pytest.fixture
def launched(monkeypatch):
    seen = []

    def launch(use, stream, rows, addresses, **values):
        problem = use.with_rows(rows)
        seen.append((str(problem), addresses, values))
        takes = {buffer.name: buffer.optional for buffer in problem.buffers}
        assert addresses.keys() <= takes.keys() and values.keys() <= problem.values.keys()
        assert all(name in addresses or optional for name, optional in takes.items())
        if problem.op == "unscale":
            _unscale(addresses, problem)
        else:
            problem.compute({name: at for name, at in addresses.items() if name != "workspace"})

    monkeypatch.setattr(_cuda, "_launch", launch)
    monkeypatch.setattr(_cuda, "kernel", lambda problem, index: problem)
    monkeypatch.setattr(_cuda, "index_of", lambda x: 0)
    monkeypatch.setattr(_cuda, "_stream", lambda index: 0)
    monkeypatch.setattr(_cuda, "_capturing", lambda index: False)
    monkeypatch.setattr(_cuda, "_empty", lambda shape, dtype, index: torch.empty(shape, dtype=dtype))
    monkeypatch.setattr(_cuda, "_tables", {})
    return seen


def _unscale(given, problem):
    """What the kernel does with addresses."""
    assert "x.data" not in given and "y.data" not in given
    dtype = {v: k for k, v in FORMATS.items()}[problem.fields["x"]]
    table = np.ctypeslib.as_array((ctypes.c_int64 * (2 * problem.rows)).from_address(given["table"])).reshape(-1, 2)
    scale, found = (ctypes.c_float.from_address(given[name]) for name in ("scale.data", "found_inf.data"))
    assert ctypes.c_int64.from_address(given["workspace"]).value == 0
    bad = "found_before" in given and ctypes.c_float.from_address(given["found_before"]).value != 0
    for address, elements in table.tolist():
        raw = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
        part = torch.frombuffer(raw, dtype=dtype)
        bad |= float(twt.unscale_([part], torch.tensor([scale.value]))) != 0
    found.value = float(bad)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("zero", [None, 1])
@pytest.mark.parametrize("channels", [False, True])
def test_fake_quantization_is_launched(launched, learned, zero, channels):
    x, dy = torch.randn(6, 64), torch.randn(6, 64)
    scale = torch.rand(6 if channels else 1) + 0.1
    zp = None if zero is None else torch.full_like(scale, zero, dtype=torch.int32)
    y = _cuda.fake_quant(x, scale, zp, -8, 7)
    assert torch.equal(y, torch.ops.tilewright.fake_quantize(x, scale, zp, -8, 7))
    factor = 1 / math.sqrt((64 if channels else 384) * 7)
    dx, ds = _cuda.fake_quant_grad(dy, x, scale, zp, -8, 7, learned, factor)
    want = torch.ops.tilewright.fake_quantize_grad(dy, x, scale, zp, -8, 7, learned, factor)
    assert torch.equal(dx, want[0])
    if learned:
        assert torch.allclose(ds, want[1], rtol=1e-5)
    _, addresses, values = launched[-1]
    assert ("zero_point" in addresses) == (zero is not None)
    assert values == ({"factor": pytest.approx(factor)} if learned else {})
    assert ("workspace" in addresses) == (learned and not channels)
    assert _cuda.fake_quant(x[:0], scale[:1], None, -8, 7).shape == (0, 64)


def test_unscale_is_launched_once_for_a_dtype(launched):
    tensors = [t for dtype in DTYPES for t in gradients(dtype)]
    tensors.append(torch.randn(6, 4).T)  # its memory has no gaps
    tensors.append(torch.randn(6, 4)[:, ::2])
    want = [t.clone() for t in tensors]
    scale = torch.tensor([3.0])
    assert float(twt.unscale_(want, scale)) == 0
    assert float(_cuda.unscale(tensors, scale, None)) == 0
    assert [text.split()[:2] for text, *_ in launched] == [["unscale", f"x={x}"] for x in ("f32", "f16", "bf16")]
    assert all(torch.equal(a, b) for a, b in zip(tensors, want))
    tensors[-1][1, 1] = math.inf
    assert float(_cuda.unscale(tensors, scale, None)) == 1
    assert float(_cuda.unscale([torch.ones(0)], scale, None)) == 0
    assert float(_cuda.unscale([torch.ones(0)], scale, torch.tensor([0.5]))) == 1


def test_update_scale_is_launched(launched):
    scale, good = torch.tensor([8.0]), torch.tensor([2], dtype=torch.int32)
    _cuda.update_scale(scale, good, torch.zeros(1), 2.0, 0.5, 3)
    assert (float(scale), int(good)) == (16.0, 0)
    assert launched[0][0] == "update_scale interval=3"
