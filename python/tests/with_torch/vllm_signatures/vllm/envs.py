# SPDX-License-Identifier: Apache-2.0
VLLM_DISABLED_KERNELS: list = []
