# SPDX-License-Identifier: Apache-2.0
# What the library has for CPUs, in all folders: loader, compiler, threads, kernels, engine.
tilewright_test(cpu tilewright_tuner tilewright_jit tilewright_templates tilewright_cache)
add_test(NAME cpu COMMAND test_cpu)
