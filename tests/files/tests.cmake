# SPDX-License-Identifier: Apache-2.0
tilewright_test(files SEPARATE tilewright_files tilewright_templates)
add_test(NAME files COMMAND test_files)
