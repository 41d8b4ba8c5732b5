# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints as each quantizer writes them, beside the same weights as floats. PyTorch alone: nothing of
Tilewright's that the checkpoints are to test."""

import json
import os

import torch
from safetensors.torch import save_file

HIDDEN, WIDTH, LAYERS, HEADS, KV_HEADS, VOCAB, EXPERTS, GROUP = 256, 512, 2, 4, 2, 512, 4, 128
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def llama(seed=0):
    """Names and tensors of a model, and its config."""
    r = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return (torch.randn(shape, generator=r) * 0.02).bfloat16()  # as models are initialized

    head = HIDDEN // HEADS
    out = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN), "lm_head.weight": normal(VOCAB, HIDDEN)}
    out["model.norm.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[f"{at}{name}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        for name, n, k in (("q", HIDDEN, HIDDEN), ("k", KV_HEADS * head, HIDDEN), ("v", KV_HEADS * head, HIDDEN), ("o", HIDDEN, HIDDEN)):
            out[f"{at}self_attn.{name}_proj.weight"] = normal(n, k)
        for name, n, k in (("gate", WIDTH, HIDDEN), ("up", WIDTH, HIDDEN), ("down", HIDDEN, WIDTH)):
            out[f"{at}mlp.{name}_proj.weight"] = normal(n, k)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return out, config


def mixture(seed=0):
    """The same with experts of Qwen3's names instead of the mlp."""
    dense, config = llama(seed)
    r = torch.Generator().manual_seed(seed + 1)
    out = {name: tensor for name, tensor in dense.items() if ".mlp." not in name}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name in ("q_norm", "k_norm"):
            out[f"{at}self_attn.{name}.weight"] = torch.ones(HIDDEN // HEADS, dtype=torch.bfloat16)
        out[f"{at}mlp.gate.weight"] = (torch.randn(EXPERTS, HIDDEN, generator=r) * 0.1).bfloat16()
        for e in range(EXPERTS):
            for name, n, k in (("gate", WIDTH, HIDDEN), ("up", WIDTH, HIDDEN), ("down", HIDDEN, WIDTH)):
                out[f"{at}mlp.experts.{e}.{name}_proj.weight"] = (torch.randn(n, k, generator=r) * 0.02).bfloat16()
    more = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH, "norm_topk_prob": True}
    more |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    return out, config | more | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}


# ---- quantizers: a matrix [n, k] of floats to the tensors of a layer, and the values that they stand for


def words(codes, bits=4):
    """Packs the last dimension in int32, the first lowest."""
    per = 32 // bits
    parts = codes.long().reshape(*codes.shape[:-1], -1, per) << torch.arange(0, 32, bits)
    total = parts.sum(-1)
    return torch.where(total >= 1 << 31, total - (1 << 32), total).to(torch.int32)


def grouped(w, bits=4, group=GROUP, symmetric=True, dtype=torch.float16):
    """Codes [n, k], scales and zero points [n, groups], values."""
    n, k = w.shape
    group = k if group == -1 else group
    blocks = w.float().reshape(n, -1, group)
    if symmetric:
        scales = (blocks.abs().amax(-1) / ((1 << (bits - 1)) - 1)).clamp(min=1e-5).to(dtype)
        zeros = torch.full_like(scales, 1 << (bits - 1), dtype=torch.int32)
    else:
        low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
        scales = ((high - low) / ((1 << bits) - 1)).clamp(min=1e-5).to(dtype)
        zeros = (-low / scales.float()).round().clamp(0, (1 << bits) - 1).int()
    codes = (blocks / scales.float()[..., None]).round() + zeros[..., None]
    codes = codes.clamp(0, (1 << bits) - 1).int()
    values = ((codes - zeros[..., None]) * scales.float()[..., None]).reshape(n, k)
    return codes.reshape(n, k), scales, zeros, values


def gptq(w, bits=4, group=GROUP):
    codes, scales, zeros, values = grouped(w, bits, group)
    tensors = {"qweight": words(codes, bits).t(), "scales": scales.t(), "qzeros": words(zeros.t() - 1, bits)}
    tensors["g_idx"] = torch.arange(w.shape[1], dtype=torch.int32) // (w.shape[1] if group == -1 else group)
    return tensors, values


def awq(w):
    codes, scales, zeros, values = grouped(w, symmetric=False)

    def packed(rows):
        return words(rows.reshape(rows.shape[0], -1, 8)[..., AWQ_ORDER].reshape(rows.shape))

    return {"qweight": packed(codes.t()), "qzeros": packed(zeros.t()), "scales": scales.t()}, values


def compressed(w, bits=4, group=GROUP, symmetric=True):
    codes, scales, zeros, values = grouped(w, bits, group, symmetric, torch.bfloat16)
    tensors = {"weight_packed": words(codes, bits), "weight_scale": scales, "weight_shape": torch.tensor(w.shape)}
    if not symmetric:
        tensors["weight_zero_point"] = words(zeros.t()).t()
    return tensors, values


def int8(w):
    scales = w.float().abs().amax(1, keepdim=True) / 127
    codes = (w.float() / scales).round().to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def fp8(w, by="row"):
    if by == "block":
        n, k = w.shape
        blocks = w.float().reshape(n // 128, 128, k // 128, 128)
        scales = blocks.abs().amax((1, 3)) / 448
        codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        values = (codes.float() * scales[:, None, :, None]).reshape(n, k)
        return {"weight": codes.reshape(n, k), "weight_scale_inv": scales}, values
    scales = w.float().abs().amax(1, keepdim=True) / 448
    codes = (w.float() / scales).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def e2m1(values):
    """Codes of the nearest numbers."""
    magnitude = (values.abs()[..., None] - E2M1).abs().argmin(-1)
    return (magnitude + 8 * (values < 0)).to(torch.uint8)


def fp4(w, size, scales, factor=1.0):
    """Nibbles, the first lowest, under scales [n, k / size] times a factor."""
    n, k = w.shape
    wide = (scales.float() * factor).repeat_interleave(size, 1)
    codes = e2m1(w.float() / wide)
    values = torch.where(codes >= 8, -1.0, 1.0) * E2M1[(codes & 7).long()] * wide
    return codes[:, 0::2] | codes[:, 1::2] << 4, values


def nvfp4(w, producer="compressed"):
    factor = torch.tensor(0.125 / (6 * 448))  # the same for layers that vLLM fuses, as quantizers choose it
    largest = w.float().abs().reshape(w.shape[0], -1, 16).amax(-1)
    scales = (largest / 6 / factor).clamp(min=2**-9).to(torch.float8_e4m3fn)
    codes, values = fp4(w, 16, scales, factor)
    if producer == "modelopt":
        return {"weight": codes, "weight_scale": scales, "weight_scale_2": factor, "input_scale": torch.tensor(0.002)}, values
    more = {"weight_global_scale": (1 / factor).reshape(1), "input_global_scale": torch.tensor([500.0])}
    return {"weight_packed": codes, "weight_scale": scales, **more}, values


def powers(w, largest):
    """E8M0 scales for 32 columns, whose largest number is `largest`."""
    return (w.float().abs().reshape(w.shape[0], -1, 32).amax(-1) / largest).clamp(min=2.0**-100).log2().ceil()


def mxfp4(w):
    exponents = powers(w, 6)
    codes, values = fp4(w, 32, exponents.exp2())
    return {"weight_packed": codes, "weight_scale": (exponents + 127).to(torch.uint8)}, values


def compressed_config(format, inputs=None, **weights):
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group | {"format": format}},
        "ignore": ["lm_head", "re:.*mlp\\.gate$"],
    }


_ROUTERS = [f"model.layers.{i}.mlp.gate" for i in range(LAYERS)]
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
_BY_TOKEN = {"num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
_FP4_INPUTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local", "symmetric": True}
_GPTQ = {"quant_method": "gptq", "group_size": GROUP, "desc_act": False, "sym": True, "checkpoint_format": "gptq"}
_MX = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}

# By name: what quantizes a matrix, and the quantization_config of the model; None: floats. Left out is what vLLM itself
# does not load on a CPU: GPTQ of 8 bits, and FP8 by tensor where layers are fused.
METHODS = {
    "gptq": (gptq, _GPTQ | {"bits": 4}),
    "gptq-row": (lambda w: gptq(w, 4, -1), _GPTQ | {"bits": 4, "group_size": -1}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "w4a16": (compressed, compressed_config("pack-quantized", **_INT4)),
    "w4a16-zeros": (lambda w: compressed(w, symmetric=False), compressed_config("pack-quantized", **_INT4 | {"symmetric": False})),
    "w8a16": (lambda w: compressed(w, 8), compressed_config("pack-quantized", **_INT4 | {"num_bits": 8})),
    "w8a8-int8": (
        int8,
        compressed_config("int-quantized", _BY_TOKEN | {"type": "int"}, num_bits=8, type="int", strategy="channel"),
    ),
    "w8a8-fp8": (
        fp8,
        compressed_config("float-quantized", _BY_TOKEN | {"type": "float"}, num_bits=8, type="float", strategy="channel"),
    ),
    "fp8-block": (
        lambda w: fp8(w, "block"),
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
    "nvfp4": (
        nvfp4,
        compressed_config("nvfp4-pack-quantized", _FP4_INPUTS, num_bits=4, type="float", strategy="tensor_group", group_size=16),
    ),
    "nvfp4-modelopt": (
        lambda w: nvfp4(w, "modelopt"),
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"], "kv_cache_quant_algo": None},
    ),
    "mxfp4": (mxfp4, compressed_config("mxfp4-pack-quantized", _MX | {"num_bits": 4, "dynamic": True}, num_bits=4, **_MX)),
    "moe-bf16": (None, None),
    "moe-fp8": (
        fp8,
        compressed_config("float-quantized", _BY_TOKEN | {"type": "float"}, num_bits=8, type="float", strategy="channel"),
    ),
    "moe-fp8-block": (
        lambda w: fp8(w, "block"),
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "ignored_layers": _ROUTERS},
    ),
    "moe-int4": (compressed, compressed_config("pack-quantized", **_INT4)),
    "moe-awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "moe-gptq": (gptq, _GPTQ | {"bits": 4}),
    "moe-mxfp4": (mxfp4, compressed_config("mxfp4-pack-quantized", _MX | {"num_bits": 4, "dynamic": True}, num_bits=4, **_MX)),
}


def write(folder, method, floats=False):
    """Writes a checkpoint of METHODS[method], or (floats) of the values that its codes stand for."""
    quantize, config = METHODS[method]
    tensors, model = mixture() if method.startswith("moe") else llama()
    out = {}
    for name, tensor in tensors.items():
        if quantize is None or not name.endswith("_proj.weight"):
            out[name] = tensor
            continue
        parts, values = quantize(tensor)
        if floats:
            out[name] = values.bfloat16()
        else:
            out |= {name.removesuffix("weight") + part: t.contiguous() for part, t in parts.items()}
    os.makedirs(folder, exist_ok=True)
    save_file(out, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    if config is not None and not floats:
        model["quantization_config"] = config
    for file, content in (("config.json", model), ("generation_config.json", {"do_sample": False})):
        with open(os.path.join(folder, file), "w") as out_file:
            json.dump(content, out_file)
    return folder
