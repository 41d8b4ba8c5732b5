# SPDX-License-Identifier: Apache-2.0
"""Lists of kernels by platform, their base classes, and kernels of vLLM's own, which dequantize."""

from abc import ABC, abstractmethod

from vllm.platforms import PlatformEnum


class MPLinearKernel(ABC):
    @classmethod
    @abstractmethod
    def get_min_capability(cls): ...

    @classmethod
    @abstractmethod
    def can_implement(cls, c): ...

    @abstractmethod
    def process_weights_after_loading(self, layer): ...

    @abstractmethod
    def apply_weights(self, layer, x, bias=None): ...


class _Supported(ABC):
    @classmethod
    @abstractmethod
    def is_supported(cls, compute_capability=None): ...

    @classmethod
    @abstractmethod
    def can_implement(cls, c): ...

    @abstractmethod
    def process_weights_after_loading(self, layer): ...

    @abstractmethod
    def apply_weights(self, layer, x, bias=None): ...


class Int8ScaledMMLinearKernel(_Supported):
    pass


class FP8ScaledMMLinearKernel(_Supported):
    @abstractmethod
    def apply_scaled_mm(self, **arguments): ...


class Mxfp8LinearKernel(_Supported):
    pass


class NvFp4LinearKernel(_Supported):
    pass


class MxFp4LinearKernel(_Supported):
    pass


class Theirs(MPLinearKernel):
    """Counts what it is given."""

    loaded = 0

    @classmethod
    def get_min_capability(cls):
        return -1

    @classmethod
    def can_implement(cls, c):
        return True, None

    def __init__(self, c, w_q_param_name, w_s_param_name, w_zp_param_name=None, w_gidx_param_name=None):
        self.config = c

    def process_weights_after_loading(self, layer):
        Theirs.loaded += 1

    def apply_weights(self, layer, x, bias=None):
        return x.new_zeros((*x.shape[:-1], self.config.partition_weight_shape[1]))


_POSSIBLE_KERNELS = {PlatformEnum.CPU: [Theirs], PlatformEnum.CUDA: [Theirs]}
_POSSIBLE_INT8_KERNELS: dict = {}
_POSSIBLE_FP8_KERNELS: dict = {}
_POSSIBLE_FP8_BLOCK_KERNELS: dict = {}
_POSSIBLE_WFP8A16_KERNELS: dict = {}
_POSSIBLE_MXFP8_KERNELS: dict = {}
_POSSIBLE_NVFP4_KERNELS: dict = {}
_LISTS = {
    "mp": _POSSIBLE_KERNELS,
    "int8": _POSSIBLE_INT8_KERNELS,
    "fp8": _POSSIBLE_FP8_KERNELS,
    "mxfp8": _POSSIBLE_MXFP8_KERNELS,
    "nvfp4": _POSSIBLE_NVFP4_KERNELS,
}  # of a version without MXFP4


def register_linear_kernel(kernel_class, platform, kernel_type="mp"):
    if kernel_type not in _LISTS:
        raise ValueError(f"Unrecognized kernel type: {kernel_type}")
    _LISTS[kernel_type].setdefault(platform, []).append(kernel_class)
