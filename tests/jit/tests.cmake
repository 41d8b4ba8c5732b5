# SPDX-License-Identifier: Apache-2.0
tilewright_test(jit tilewright_jit tilewright_templates fake_cuda)
add_test(NAME jit COMMAND test_jit)
