# SPDX-License-Identifier: Apache-2.0
tilewright_test(quantize SEPARATE tilewright emulator)
add_test(NAME quantize COMMAND test_quantize)
