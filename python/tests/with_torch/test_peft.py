# SPDX-License-Identifier: Apache-2.0
"""LoRA by PEFT on a tiny model with quantized layers."""

from __future__ import annotations

import pytest

peft = pytest.importorskip("peft")
pytest.importorskip("transformers")

import torch
from test_transformers import TOKENS, linears, logits, tiny

import tilewright as tw
import tilewright.torch as twt
from tilewright.peft import LoraLinear, adaptable

ACTIVATIONS = [None, "q8_1"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_lora_is_trained_saved_and_loaded(tmp_path, activation):
    model = tiny()
    twt.replace_linears(model, [("lm_head", None), ("*", {"weight": "q8_0", "activation": activation})])
    before = logits(model)
    stored = [layer.weight.data.clone() for layer in linears(model, twt.QuantizedLinear).values()]
    config = adaptable(peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))
    adapted = peft.get_peft_model(model, config)
    assert len(linears(adapted, LoraLinear)) == 4 and torch.equal(logits(adapted), before)
    assert all("lora_" in name for name, p in adapted.named_parameters() if p.requires_grad)
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = adapted(TOKENS, labels=TOKENS).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0] - 0.05
    layers = linears(adapted, twt.QuantizedLinear).values()
    assert all(torch.equal(a, b.weight.data) for a, b in zip(stored, layers))
    adapted.save_pretrained(tmp_path)
    again = tiny()
    twt.replace_linears(again, [("lm_head", None), ("*", {"weight": "q8_0", "activation": activation})])
    loaded = peft.PeftModel.from_pretrained(
        again, tmp_path, config=adaptable(peft.LoraConfig.from_pretrained(tmp_path))
    )
    assert torch.equal(logits(loaded), logits(adapted.eval())) and not torch.equal(logits(loaded), before)


def test_quantized_weights_are_not_merged():
    model = tiny()
    twt.replace_linears(model, [("lm_head", None), ("*", {"weight": "q8_0"})])
    adapted = peft.get_peft_model(model, adaptable(peft.LoraConfig(target_modules=["q_proj"])))
    with pytest.raises(tw.Unsupported, match="merge into a QuantizedLinear is not supported"):
        adapted.merge_adapter()
