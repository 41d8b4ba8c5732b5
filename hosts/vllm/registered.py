# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: vLLM's tests run with our kernels in its lists, as they are in an engine."""

import tilewright.vllm

tilewright.vllm.register()
