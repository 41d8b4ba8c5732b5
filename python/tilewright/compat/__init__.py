# SPDX-License-Identifier: Apache-2.0
"""Other libraries' Python interfaces over Tilewright: programs that use them change their import lines alone. Each
module says what it does otherwise than the original, and why. They import PyTorch."""
