# SPDX-License-Identifier: Apache-2.0
"""The table of functions and the structs against the header, which a C compiler reads."""

from __future__ import annotations

import ctypes
import re
import subprocess

import pytest
from conftest import SOURCE
from tilewright import _c

HEADER = SOURCE / "include" / "tilewright" / "tilewright_c.h"
# What the package does without: it counts references itself, and has problems from text.
UNUSED = {
    "tw_status_name",
    "tw_error_release",
    "tw_problem_from_gemm",
    "tw_compile_worker_main",
    *(f"tw_{kind}_retain" for kind in ("problem", "device", "engine", "kernel")),
}
# Structs by their names in C, but for those that the package does without.
STRUCTS = {
    "tw_" + re.sub("(?<!^)(?=[A-Z])", "_", name).lower(): kind
    for name, kind in vars(_c).items()
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind not in (ctypes.Structure, _c.Sized)
}


def bound():
    return {*_c._FALLIBLE, *_c._LAUNCHES, *(name for of in _c._OTHERS.values() for name in of)}


def declarations():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    text = re.sub(r"^#define TW_API.*$", "", text, flags=re.M)
    for result, name, parameters in re.findall(r"TW_API\s+([\w\s*]+?)\s*\**\s*(tw_\w+)\((.*?)\);", text, flags=re.S):
        depth, count = 0, 0 if parameters.strip() == "void" else 1
        for character in parameters:
            depth += (character == "(") - (character == ")")
            count += character == "," and depth == 0
        yield name, result, count, "tw_error** error" in parameters


def test_every_function_of_the_header_is_in_the_table():
    assert bound() | UNUSED == {name for name, *_ in declarations()}
    assert not bound() & UNUSED


def test_functions_take_what_the_header_says():
    for name, result, count, fallible in declarations():
        if name in _c._FALLIBLE:
            assert fallible and result == "tw_status" and len(_c._FALLIBLE[name]) + 1 == count, name
        elif name in _c._LAUNCHES:
            assert not fallible and result == "tw_status" and len(_c._LAUNCHES[name]) == count, name
        elif name not in UNUSED:
            assert not fallible and count == next(len(of[name]) for of in _c._OTHERS.values() if name in of), name


def test_every_function_is_exported():
    for name in bound():
        assert getattr(_c.lib, name) is not None


def test_structs_are_laid_out_as_in_c(tmp_path):
    """Sizes and offsets, and the defaults of the _INIT macros."""
    lines = []
    for name, kind in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in kind._fields_:
            member = "global" if field == "global_scale" else field
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {member}));')
        if issubclass(kind, _c.Sized):
            lines.append(f"{{ {name} v = {name.upper()}_INIT; const unsigned char* b = (const unsigned char*)&v;")
            lines.append(
                f'printf("{name}_INIT "); for (size_t i = 0; i < sizeof v; ++i) printf("%02x", b[i]); puts(""); }}'
            )
    source = tmp_path / "layout.c"
    body = "\n".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include "tilewright/tilewright_c.h"\nint main(void) {{ {body} return 0; }}'
    )
    if subprocess.run(["cc", f"-I{SOURCE / 'include'}", source, "-o", tmp_path / "layout"]).returncode:
        pytest.skip("needs a C compiler")
    said = dict(line.split() for line in subprocess.check_output([tmp_path / "layout"], text=True).splitlines())
    for name, kind in STRUCTS.items():
        assert ctypes.sizeof(kind) == int(said[name]), name
        for field, *_ in kind._fields_:
            assert getattr(kind, field).offset == int(said[f"{name}.{field}"]), f"{name}.{field}"
    for kind in (_c.TunePolicy, _c.PrewarmPolicy):
        name = "tw_" + re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        assert bytes(kind()).hex() == said[f"{name}_INIT"], name


def test_version_is_the_headers():
    import tilewright

    header = (SOURCE / "include" / "tilewright" / "version.h").read_text()
    assert tilewright.__version__ == re.search(r'VERSION_STRING "([^"]+)"', header).group(1)


@pytest.mark.parametrize("value", ["a\0b", 3, None, b"bytes"])
def test_text_for_c(value):
    with pytest.raises(_c._errors.InvalidArgument, match="name = "):
        _c.text(value, "name")


def test_struct_of_another_size_is_refused():
    info = _c.FormatInfo()
    for size in (0, 8, ctypes.sizeof(info) - 1, 1 << 20):
        info.struct_size = size
        with pytest.raises(_c._errors.InvalidArgument, match="struct_size"):
            _c.lib.tw_format_at(0, ctypes.byref(info))


def test_null_handles_are_refused():
    with pytest.raises(_c._errors.InvalidArgument, match="null"):
        _c.lib.tw_device_synchronize(None)
    assert _c.lib.tw_problem_rows(None) == -1
    assert _c.lib.tw_problem_text(None) is None
