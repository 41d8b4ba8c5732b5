# SPDX-License-Identifier: Apache-2.0
"""The README of TurboPi's W4A8 plugin, section 3, and its accuracy gate."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tilewright.compat.w4a8_plugin import W4A8Linear, replace_mlp_with_w4a8  # noqa: E402


class Mlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.Linear(128, 128)
        self.mlp = Mlp(128, 512)

    def forward(self, x):
        return x + self.mlp(self.attention(x))


def cosine(a, b):
    return nn.functional.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0).item()


def test_the_readme():
    torch.manual_seed(0)
    original_linear = nn.Linear(2048, 256, bias=False).bfloat16()
    w4a8_linear = W4A8Linear.from_linear(original_linear)
    x = torch.rand(64, 2048).bfloat16() * 2 - 1
    assert cosine(w4a8_linear(x), original_linear(x)) > 0.99
    assert w4a8_linear.weight.nbytes < 0.3 * original_linear.weight.nbytes

    model = Model().bfloat16()
    x = torch.randn(4, 128).bfloat16()
    before = model(x)
    assert replace_mlp_with_w4a8(model) == 3
    assert isinstance(model.attention, nn.Linear) and isinstance(model.mlp.down_proj, W4A8Linear)
    assert cosine(model(x), before) > 0.99


def test_the_plugins_own_gate():
    """test_w4a8_gemm 256 2048 2048: uniform in [-1, 1], cosine above 0.99 against single precision."""
    torch.manual_seed(42)
    linear = nn.Linear(2048, 2048, bias=False)
    nn.init.uniform_(linear.weight, -1, 1)
    x = torch.rand(256, 2048) * 2 - 1
    assert cosine(W4A8Linear.from_linear(linear)(x), x @ linear.weight.T) > 0.99


def test_small_weights_survive():
    """Blocks below 0.006 are zero in the plugin, whose scales have no factor for the tensor."""
    linear = nn.Linear(128, 64, bias=False)
    nn.init.uniform_(linear.weight, -1e-4, 1e-4)
    x = torch.randn(8, 128)
    assert cosine(W4A8Linear.from_linear(linear)(x), x @ linear.weight.T) > 0.98
