# SPDX-License-Identifier: Apache-2.0
from vllm import state


def get_current_vllm_config():
    assert state.config is not None, "Current vLLM config is not set"
    return state.config
