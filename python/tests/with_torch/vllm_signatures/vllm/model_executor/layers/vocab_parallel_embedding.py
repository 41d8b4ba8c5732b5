# SPDX-License-Identifier: Apache-2.0
from torch import nn


class ParallelLMHead(nn.Module):
    pass
