# SPDX-License-Identifier: Apache-2.0
"""abi_check.py HEADER PUBLISHED.abi WORKDIR [--write]: the binary interface of tilewright_c.h against the published one.

libabigail reads types from debug information, and of a C++ library that is megabytes of what is not public. So the
header's functions are compiled once more, as C and without bodies. Functions and fields may be added at the end of
structs, with --write to publish them; what existed may not change, unless TW_ABI_VERSION rises. Exits with 77 where
abidiff is not installed.
"""
import pathlib
import re
import shutil
import subprocess
import sys


def stub(header: pathlib.Path) -> str:
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
    functions = re.findall(r"^TW_API\s+([^;]+);", text, flags=re.M)
    if len(functions) < 100:
        sys.exit(f"{header}: only {len(functions)} functions were found")
    bodies = "\n".join(f"{f} {{ __builtin_trap(); }}" for f in functions)
    return f"#include <tilewright/{header.name}>\n{bodies}\n"


def main() -> int:
    header, published, work = (pathlib.Path(a) for a in sys.argv[1:4])
    if not shutil.which("abidiff"):
        print("skipped: abidiff (Debian's abigail-tools) is not installed")
        return 77
    work.mkdir(parents=True, exist_ok=True)
    source, library = work / "stub.c", work / "libstub.so"
    source.write_text(stub(header))
    subprocess.run(["cc", "-std=c11", "-g", "-O0", "-shared", "-fPIC", "-w", f"-I{header.parent.parent}",
                    "-Wl,-soname,libtilewright_c.so.1", str(source), "-o", str(library)], check=True)
    current = work / "current.abi"
    subprocess.run(["abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--type-id-style", "hash",
                    "--no-elf-needed", str(library), "--out-file", str(current)], check=True)
    if "--write" in sys.argv[4:]:
        shutil.copyfile(current, published)
        return 0
    return subprocess.run(["abidiff", "--no-architecture", str(published), str(current)]).returncode


sys.exit(main())
