# SPDX-License-Identifier: Apache-2.0
"""Layers that are whole, cut along their outputs or along their inputs, or fused, and the loaders that they hand to
create_weights()."""

from abc import abstractmethod

import torch
from torch import nn
from vllm import state
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

WEIGHT_LOADER_V2_SUPPORTED = []


def register_weight_loader_v2_supported_method(cls):
    WEIGHT_LOADER_V2_SUPPORTED.append(cls.__name__)
    return cls


class LinearMethodBase(QuantizeMethodBase):
    @abstractmethod
    def create_weights(
        self,
        layer,
        input_size_per_partition,
        output_partition_sizes,
        input_size,
        output_size,
        params_dtype,
        **extra_weight_attrs,
    ): ...

    @abstractmethod
    def apply(self, layer, x, bias=None): ...


class UnquantizedLinearMethod(LinearMethodBase):
    def create_weights(self, layer, *weight_args, **extra_weight_attrs):
        pass

    def apply(self, layer, x, bias=None):
        raise NotImplementedError


class LinearBase(nn.Module):
    def __init__(self, k, parts, full, bias=False, params_dtype=None, quant_config=None, prefix=""):
        """k: columns that this process has, of full[1]; parts: rows that it has of each fused layer, full[0] in all."""
        super().__init__()
        self.tp_rank, self.tp_size = state.rank, state.size
        self.parts, dtype = parts, params_dtype or torch.get_default_dtype()
        self.quant_method = quant_config.get_quant_method(self, prefix=prefix)
        if self.quant_method is None:
            raise ValueError("All linear layers should support quant method.")
        second = type(self.quant_method).__name__ in WEIGHT_LOADER_V2_SUPPORTED
        assert second, "tested with the loaders of parameters alone"
        self.quant_method.create_weights(
            layer=self,
            input_size_per_partition=k,
            output_partition_sizes=parts,
            input_size=full[1],
            output_size=full[0],
            params_dtype=dtype,
            weight_loader=self.weight_loader_v2,
        )
        self.bias = nn.Parameter(torch.zeros(sum(parts), dtype=dtype), requires_grad=False) if bias else None

    def forward(self, x):
        return self.quant_method.apply(self, x, self.bias), None


class ReplicatedLinear(LinearBase):
    def __init__(self, input_size, output_size, **more):
        super().__init__(input_size, [output_size], (output_size, input_size), **more)

    def weight_loader_v2(self, param, loaded_weight):
        loaded_weight = loaded_weight.reshape(1) if loaded_weight.dim() == 0 else loaded_weight
        assert param.size() == loaded_weight.size()
        param.data.copy_(loaded_weight)


class ColumnParallelLinear(LinearBase):
    def __init__(self, input_size, output_size, **more):
        super().__init__(input_size, [output_size // state.size], (output_size, input_size), **more)

    def weight_loader_v2(self, param, loaded_weight):
        param.load_column_parallel_weight(loaded_weight=loaded_weight)


class MergedColumnParallelLinear(LinearBase):
    def __init__(self, input_size, output_sizes, **more):
        parts = [size // state.size for size in output_sizes]
        super().__init__(input_size, parts, (sum(output_sizes), input_size), **more)

    def weight_loader_v2(self, param, loaded_weight, loaded_shard_id):
        offset = sum(self.parts[:loaded_shard_id])
        param.load_merged_column_weight(
            loaded_weight=loaded_weight,
            shard_id=loaded_shard_id,
            shard_offset=offset,
            shard_size=self.parts[loaded_shard_id],
        )


class QKVParallelLinear(LinearBase):
    """Heads of k and v are repeated where there are fewer of them than processes."""

    def __init__(self, hidden_size, head_size, total_num_heads, total_num_kv_heads, **more):
        heads, kv = total_num_heads // state.size, max(total_num_kv_heads // state.size, 1)
        replicas = max(state.size // total_num_kv_heads, 1)
        parts = [heads * head_size, kv * head_size, kv * head_size]
        super().__init__(hidden_size, parts, (sum(parts) * state.size, hidden_size), **more)
        self.num_kv_head_replicas = replicas

    def weight_loader_v2(self, param, loaded_weight, loaded_shard_id):
        index = "qkv".index(loaded_shard_id)
        param.load_qkv_weight(
            loaded_weight=loaded_weight,
            num_heads=self.num_kv_head_replicas,
            shard_id=loaded_shard_id,
            shard_offset=sum(self.parts[:index]),
            shard_size=self.parts[index],
        )


class RowParallelLinear(LinearBase):
    def __init__(self, input_size, output_size, **more):
        super().__init__(input_size // state.size, [output_size], (output_size, input_size), **more)

    def weight_loader_v2(self, param, loaded_weight):
        param.load_row_parallel_weight(loaded_weight=loaded_weight)

    def forward(self, x):
        """Of the processes, whose outputs are added, the first one alone adds the bias."""
        return self.quant_method.apply(self, x, None if self.tp_rank > 0 else self.bias), None
