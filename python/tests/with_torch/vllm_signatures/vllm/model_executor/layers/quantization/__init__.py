# SPDX-License-Identifier: Apache-2.0
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

QUANTIZATION_METHODS = ["awq", "gptq", "compressed-tensors", "modelopt"]
_CUSTOMIZED = {}


def register_quantization_config(quantization: str):
    def wrap(quant_config_cls):
        if quantization not in QUANTIZATION_METHODS:
            QUANTIZATION_METHODS.append(quantization)
        if not issubclass(quant_config_cls, QuantizationConfig):
            raise ValueError("not a QuantizationConfig")
        _CUSTOMIZED[quantization] = quant_config_cls
        return quant_config_cls

    return wrap


def get_quantization_config(quantization: str):
    return _CUSTOMIZED[quantization]
