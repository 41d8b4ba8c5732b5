# SPDX-License-Identifier: Apache-2.0
tilewright_test(quantize tilewright_quantize tilewright_templates tilewright_cache)
add_test(NAME quantize COMMAND test_quantize)
