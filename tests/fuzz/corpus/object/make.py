#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the objects beside it with GCC, which shares nothing with the loader: one that is taken, and one for each thing
that is not. kernel.o is what LLVM makes of a kernel: `TILEWRIGHT_KERNEL_OBJECT=kernel.o test_cpu "write kernel.o"` writes
it, and arm.o with TILEWRIGHT_KERNEL_TARGET=armv8.2+dotprod."""
import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent
PLAIN = "void k(float* v, int n) { for (int i = 0; i < n; ++i) v[i] += 0.5f; }"
FLAGS = ["-O2", "-fPIC", "-fno-asynchronous-unwind-tables", "-fcf-protection=none", "-fno-stack-protector"]
SOURCES = {
    "add": (PLAIN, []),
    "undefined": ("void* memset(void*, int, unsigned long); void k(char* p, long n) { memset(p, 0, n); }", []),
    "writable": ("static int count = 1; int k(void) { return ++count; }", []),
    "thread_local": ("static __thread int count = 1; int k(void) { return ++count; }", []),
    "initializer": ("__attribute__((constructor)) static void first(void) { __asm__ volatile(\"\"); } void k(void) { }", []),
    "absolute": ("static const int a = 1; void k(const int** p) { *p = &a; }", ["-mcmodel=large", "-fno-PIC"]),
}
for name, (source, flags) in SOURCES.items():
    command = ["gcc", "-x", "c", "-c", *FLAGS, *flags, "-", "-o", str(HERE / f"{name}.o")]
    subprocess.run(command, input=source, text=True, check=True)
    subprocess.run(["objcopy", "-R", ".comment", "-R", ".note.GNU-stack", str(HERE / f"{name}.o")], check=True)
