# SPDX-License-Identifier: Apache-2.0
from vllm.platforms.interface import PlatformEnum


class _Cpu:
    _enum = PlatformEnum.CPU

    def is_cpu(self):
        return True

    def is_cuda(self):
        return False

    def get_device_capability(self):
        return None


current_platform = _Cpu()
