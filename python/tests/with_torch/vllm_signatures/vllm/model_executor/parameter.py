# SPDX-License-Identifier: Apache-2.0
"""Parameters know which dimension is cut by what, and copy their part of what is loaded."""

from torch.nn import Parameter
from vllm import state


class BasevLLMParameter(Parameter):
    def __new__(cls, data, **kwargs):
        return super().__new__(cls, data=data, requires_grad=False)

    def __init__(self, data, weight_loader):
        self._weight_loader = weight_loader
        self.tp_rank, self.tp_size = state.rank, state.size

    @property
    def weight_loader(self):
        return self._weight_loader

    def _put(self, target, loaded):
        assert target.shape == loaded.shape or target.numel() == loaded.numel() == 1, (target.shape, loaded.shape)
        target.copy_(loaded.reshape(target.shape))

    def load_column_parallel_weight(self, loaded_weight):
        self._put(self.data, loaded_weight)

    def load_row_parallel_weight(self, loaded_weight):
        self._put(self.data, loaded_weight)

    def load_merged_column_weight(self, loaded_weight, **kwargs):
        self._put(self.data, loaded_weight)

    load_qkv_weight = load_merged_column_weight


class _Column(BasevLLMParameter):
    def __init__(self, output_dim, **kwargs):
        self.output_dim = output_dim
        super().__init__(**kwargs)

    def load_column_parallel_weight(self, loaded_weight):
        size = self.data.shape[self.output_dim]
        self._put(self.data, loaded_weight.narrow(self.output_dim, self.tp_rank * size, size))

    def _part(self, loaded, offset, size, rank):
        target = self.data.narrow(self.output_dim, offset, size)
        self._put(target, loaded.narrow(self.output_dim, rank * size, size))

    def load_merged_column_weight(self, loaded_weight, **kwargs):
        self._part(loaded_weight, kwargs["shard_offset"], kwargs["shard_size"], self.tp_rank)

    def load_qkv_weight(self, loaded_weight, **kwargs):
        rank = self.tp_rank if kwargs["shard_id"] == "q" else self.tp_rank // kwargs["num_heads"]
        self._part(loaded_weight, kwargs["shard_offset"], kwargs["shard_size"], rank)


class RowvLLMParameter(BasevLLMParameter):
    def __init__(self, input_dim, **kwargs):
        self.input_dim = input_dim
        super().__init__(**kwargs)

    def load_row_parallel_weight(self, loaded_weight):
        size = self.data.shape[self.input_dim]
        self._put(self.data, loaded_weight.narrow(self.input_dim, self.tp_rank * size, size))


class ModelWeightParameter(_Column, RowvLLMParameter):
    pass
