# SPDX-License-Identifier: Apache-2.0
"""The table of functions and the structs against the header, which a C compiler reads."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys

import pytest
from conftest import SOURCE
from tilewright import _c, _c_header

GENERATOR = SOURCE / "python" / "generate_c.py"
# Structs by their names in C.
STRUCTS = {
    "tw_" + re.sub("(?<!^)(?=[A-Z])", "_", name).lower(): kind
    for name, kind in vars(_c_header).items()
    if isinstance(kind, type) and issubclass(kind, (ctypes.Structure, ctypes.Union)) and kind is not _c_header.Sized
}


def generator():
    return subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True)


def test_the_table_is_what_the_header_says():
    assert generator().returncode == 0, generator().stderr


def test_every_function_is_exported():
    for name in _c_header.FUNCTIONS:
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
            lines.append(f"{{ static {name} v = {name.upper()}_INIT; const unsigned char* b = (const unsigned char*)&v;")
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
        if issubclass(kind, _c.Sized):
            assert bytes(kind()).hex() == said[f"{name}_INIT"], name


def test_version_is_the_headers():
    import tilewright

    header = (SOURCE / "include" / "tilewright" / "version.h").read_text()
    assert tilewright.__version__ == re.search(r'VERSION_STRING "([^"]+)"', header).group(1)


@pytest.mark.parametrize("value", ["a\0b", 3, None, b"bytes"])
def test_text_for_c(value):
    with pytest.raises(_c._errors.InvalidArgument, match="name must"):
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
