# SPDX-License-Identifier: Apache-2.0
tilewright_test(quantize SEPARATE tilewright emulator)
target_compile_options(test_quantize PRIVATE ${TILEWRIGHT_TEST_COMPUTES})
add_test(NAME quantize COMMAND test_quantize)
