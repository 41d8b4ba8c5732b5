# SPDX-License-Identifier: Apache-2.0
"""The part of vLLM that tilewright.vllm sees, in our own words: its names, signatures and what its loaders do with the
attributes of a parameter (vllm-project/vllm, main of 2026; linear.py at commit 0036d38). state: rank, size and config of
a process."""

import contextlib
import types

state = types.SimpleNamespace(rank=0, size=1, config=None)


@contextlib.contextmanager
def process(rank=0, size=1, **additional_config):
    """As if this were one of `size` tensor-parallel processes, under a vLLM config."""
    before = dict(vars(state))
    config = types.SimpleNamespace(additional_config=additional_config)
    vars(state).update(rank=rank, size=size, config=config)
    try:
        yield
    finally:
        vars(state).update(before)
