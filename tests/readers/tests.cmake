# SPDX-License-Identifier: Apache-2.0
tilewright_test(readers tilewright_readers tilewright_templates)
add_test(NAME readers COMMAND test_readers)
