# SPDX-License-Identifier: Apache-2.0
"""The README of TurboPi's W4A8 plugin, section 3, and its accuracy gate."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilewright.torch as twt  # noqa: E402
from tilewright import Unsupported  # noqa: E402
from tilewright.compat import w4a8_plugin  # noqa: E402
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


# ---- the layers of openpi.models_pytorch


class Pi0(nn.Module):
    """As much of PI0Pytorch as replace_paligemma_mlp_with_w4a8 looks at."""

    def __init__(self, layers, width, inner):
        super().__init__()
        language = nn.Module()
        language.layers = nn.ModuleList(nn.Module() for _ in range(layers + 1))
        for layer in language.layers[:layers]:
            layer.mlp = Mlp(width, inner)
        language.layers[layers].mlp = None
        self.paligemma_with_expert = nn.Module()
        self.paligemma_with_expert.paligemma = nn.Module()
        self.paligemma_with_expert.paligemma.language_model = language
        self.expert = Mlp(width, inner)

    def mlps(self):
        return [layer.mlp for layer in self.paligemma_with_expert.paligemma.language_model.layers[:-1]]


@pytest.mark.parametrize("suffix", ["", "_triton"])
def test_paligemma(suffix):
    torch.manual_seed(2)
    model = Pi0(2, 128, 256).bfloat16()
    x = torch.rand(5, 128).bfloat16() * 2 - 1
    before = [mlp(x) for mlp in model.mlps()]
    assert getattr(w4a8_plugin, f"replace_paligemma_mlp_with_w4a8{suffix}")(model, 32, True) == 2
    for mlp, want in zip(model.mlps(), before):
        assert type(mlp) is w4a8_plugin.W4A8MLP and (mlp.hidden_size, mlp.intermediate_size) == (128, 256)
        assert cosine(mlp(x), want) > 0.97 and mlp(x).dtype == torch.bfloat16  # three layers, each of 0.994
    assert type(model.expert) is Mlp


def test_layers_with_the_originals_arguments():
    torch.manual_seed(3)
    linear = nn.Linear(256, 64)
    layer = w4a8_plugin.W4A8LinearTriton.from_linear(linear, 32, use_triton=False)
    assert isinstance(layer, W4A8Linear) and isinstance(layer, twt.W4A8Linear) and layer.bias is linear.bias
    x = torch.randn(3, 256)
    assert torch.equal(layer(x), twt.W4A8Linear.from_linear(linear)(x))
    blank = W4A8Linear(256, 64, True, 32, False)
    blank.load_state_dict(layer.state_dict())
    assert torch.equal(blank(x), layer(x))
    mlp = w4a8_plugin.W4A8MLP(64, 128, block_size=32)
    source = Mlp(64, 128)
    mlp.load_state_dict(w4a8_plugin.W4A8MLP.from_gemma_mlp(source).state_dict())
    x = torch.randn(3, 64)
    want = mlp.down_proj(nn.functional.gelu(mlp.gate_proj(x), approximate="tanh") * mlp.up_proj(x))
    assert torch.equal(mlp(x), want) and cosine(want, source(x)) > 0.98
    for call in (lambda: W4A8Linear(256, 64, block_size=64), lambda: W4A8Linear.from_linear(linear, 8)):
        with pytest.raises(Unsupported, match="block_size"):
            call()


def test_activations_are_quantized_by_row():
    """amax / 448 in single precision for each row, then E4M3: PyTorch's conversion, W4A8LinearTriton's formula."""
    torch.manual_seed(4)
    linear = nn.Linear(512, 32, bias=False)
    layer = W4A8Linear.from_linear(linear)
    x = torch.randn(6, 512) * torch.logspace(-3, 3, 6).unsqueeze(1)
    scale = x.abs().amax(1, keepdim=True) / 448
    rounded = (x / scale).to(torch.float8_e4m3fn).double() * scale.double()
    want = rounded @ layer.dequantize().double().T
    bound = rounded.abs() @ layer.dequantize().double().abs().T
    assert ((layer(x) - want).abs() <= 2.0**-18 * bound).float().mean() > 0.9  # a tie may fall otherwise
    assert ((layer(x) - want).abs() <= 2.0**-8 * bound).all()
