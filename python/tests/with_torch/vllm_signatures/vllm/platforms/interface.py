# SPDX-License-Identifier: Apache-2.0
import enum


class PlatformEnum(enum.Enum):
    CUDA = enum.auto()
    CPU = enum.auto()
