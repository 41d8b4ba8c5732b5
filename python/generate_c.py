#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes python/tilewright/_c_header.py, the structs and functions of tilewright_c.h for ctypes:

    python3 python/generate_c.py            # --check: fails unless the file is what would be written

It reads the regular form that the header has: typedefs of structs, unions, enumerations and functions, TW_API in front
of each function, an _INIT macro behind each struct that begins with its size. What it does not understand it refuses by
name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
HEADER = SOURCE / "include" / "tilewright" / "tilewright_c.h"
OUT = SOURCE / "python" / "tilewright" / "_c_header.py"
NUMBERS = {
    "uint8_t": "c_uint8",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "int64_t": "c_int64",
    "uint64_t": "c_uint64",
    "size_t": "c_size_t",
    "float": "c_float",
    "double": "c_double",
}
KEYWORDS = {"global": "global_scale"}  # members that Python cannot name

HEAD = '''# SPDX-License-Identifier: Apache-2.0
# Written by python/generate_c.py from tilewright_c.h. Do not edit.
"""Structs and functions of tilewright_c.h. A struct's pointer to characters is bytes, one to a struct with its size or
to 64-bit integers can be indexed, and any other is an address."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any


class Sized(ctypes.Structure):
    """A struct that begins with its own size. Fields that are not given are those of its _INIT macro."""

    _defaults_: dict[str, Any] = {}

    def __init__(self, **values: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **{**self._defaults_, **values})
'''


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.removeprefix("tw_").split("_"))


class Header:
    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S).replace("\\\n", " ")
        self.version = int(re.search(r"#define TW_ABI_VERSION (\d+)", text)[1])
        inits = re.findall(r"^#define (TW_\w+)_INIT\s+(\{.*\})\s*$", text, flags=re.M)
        self.inits = {name.lower(): value for name, value in inits}
        text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
        text = re.sub(r'extern "C" \{', "", text)
        self.integers = set(re.findall(r"typedef enum \w+ \{[^}]*\} (\w+);", text))
        self.opaque = set(re.findall(r"typedef struct \w+ (\w+);", text))
        self.addresses = set(re.findall(r"typedef void\* (\w+);", text))
        self.callbacks = set(re.findall(r"typedef \w+ \(\*(\w+)\)\([^)]*\);", text))
        self.records = {
            name: (kind, [m.strip() for m in body.split(";") if m.strip()])
            for kind, body, name in re.findall(r"typedef (struct|union) \w+ \{(.*?)\} (\w+);", text, flags=re.S)
        }
        self.functions = [
            (name, " ".join(result.split()), " ".join(parameters.split()))
            for result, name, parameters in re.findall(r"TW_API ([\w\s*]+?)\b(tw_\w+)\((.*?)\);", text, flags=re.S)
        ]
        if len(self.functions) != text.count("TW_API"):
            raise SystemExit("a function is not written as the others are: TW_API RESULT NAME(PARAMETERS);")

    def value(self, c: str) -> str:
        """Of a type that is no pointer."""
        c = c.removeprefix("const ").strip()
        if c in NUMBERS:
            return NUMBERS[c]
        if c in self.integers:
            return "c_int32"
        if c in self.addresses or c in self.callbacks:
            return "c_void_p"
        if c in self.records:
            return camel(c)
        raise SystemExit(f"no type of Python for {c!r}")

    def of(self, c: str, member: bool = False) -> str:
        """Of a parameter, or of a struct's or a callback's member."""
        c = " ".join(c.replace("*", " * ").split())
        if "*" not in c:
            return self.value(c)
        if c == "const char *":
            return "c_char_p"
        if not member:
            return "c_void_p"
        base = c.split("*")[0].removeprefix("const ").strip()
        depth = c.count("*")
        if c == "const char * const *":
            return "POINTER(c_char_p)"
        sized = base in self.records and "uint32_t struct_size" in self.records[base][1]
        if depth == 1 and (sized or NUMBERS.get(base) in ("c_int64", "c_uint64")):
            return f"POINTER({self.value(base)})"
        return "POINTER(c_void_p)" if depth == 2 else "c_void_p"

    def callback(self, result: str, parameters: str) -> str:
        returned = "None" if result == "void" else "c_void_p" if "*" in result else self.value(result)
        types = [returned, *(self.of(drop_name(p), True) for p in split(parameters))]
        # Texts that a callback has to write are addresses, so that ctypes makes no object that owns what it does not.
        return f"CFUNCTYPE({', '.join(types)})".replace("POINTER(c_char_p)", "POINTER(c_void_p)")

    def members(self, name: str) -> tuple[list[str], list[tuple[str, str]]]:
        """Definitions of the callbacks that the record has, and its members with their types."""
        before, out = [], []
        for declaration in self.records[name][1]:
            function = re.fullmatch(r"([\w\s*]+?)\(\*(\w+)\)\((.*)\)", " ".join(declaration.split()))
            if function:
                result, member, parameters = function.groups()
                kind = camel(name) + camel(member)
                before.append(f"{kind} = {self.callback(result.strip(), parameters)}")
                out.append((member, kind))
                continue
            first, *others = (part.strip() for part in declaration.split(","))
            c, first = re.fullmatch(r"(.*?[\s*])(\w+(?:\[\d+\])?)", first, flags=re.S).groups()
            base = c.replace("*", "").strip()
            for part in (first, *others):
                stars = "*" if part.startswith("*") or (part is first and "*" in c) else ""
                plain, _, count = part.lstrip("*").rstrip("]").partition("[")
                kind = self.of(c if part is first else base + stars, True)
                out.append((KEYWORDS.get(plain, plain), f"{kind} * {count}" if count else kind))
        return before, out

    def defaults(self, name: str, members: list[tuple[str, str]]) -> list[str]:
        """What the _INIT macro says, where it is not zero."""
        values = split(self.inits[name].strip()[1:-1])
        if len(values) != len(members):
            raise SystemExit(f"{name.upper()}_INIT has {len(values)} values, and the struct {len(members)} members")
        out = []
        for (member, _), value in list(zip(members, values))[1:]:
            numbers = [float(v.rstrip("f")) for v in re.findall(r"[\d.]+(?:e[+-]?\d+)?f?", value)]
            if any(numbers):
                written = [str(int(n)) if n.is_integer() and n < 1e8 else repr(n) for n in numbers]
                out.append(f'"{member}": {written[0]}' if "{" not in value else f'"{member}": ({", ".join(written)})')
        return out

    def record(self, name: str) -> str:
        kind, _ = self.records[name]
        before, members = self.members(name)
        plain = name.replace("tw_mutable_", "tw_")
        if plain != name and members == self.members(plain)[1]:
            return f"{camel(name)} = {camel(plain)}  # which are laid out alike\n"
        sized = members[0][0] == "struct_size"
        parent = "Sized" if sized else "ctypes.Union" if kind == "union" else "ctypes.Structure"
        lines = [*before, *([""] * 2 if before else []), f"class {camel(name)}({parent}):", "    _fields_ = ["]
        lines += [f'        ("{member}", {kind}),' for member, kind in members]
        lines.append("    ]")
        defaults = self.defaults(name, members) if sized else []
        if defaults:
            lines.append(f"    _defaults_ = {{{', '.join(defaults)}}}")
        return "\n".join(lines) + "\n"

    def function(self, name: str, result: str, parameters: str) -> str:
        types = [self.of(drop_name(p)) for p in split(parameters)] if parameters != "void" else []
        returned = "None" if result == "void" else self.of(result)
        fallible = result == "tw_status" and parameters.endswith("tw_error** error")
        if fallible:
            types.pop()
        launch = result == "tw_status" and "launch" in name
        kind = "_FALLIBLE" if fallible else "_LAUNCH" if launch else returned
        takes = ", ".join(types) + ("," if len(types) == 1 else "")
        line = f'    "{name}": ({kind}, ({takes})),'
        if len(line) <= 120:
            return line
        wrapped = f"        ({takes}),"
        if len(wrapped) > 120:
            wrapped = "        (\n" + "".join(f"            {t},\n" for t in types) + "        ),"
        return f'    "{name}": (\n        {kind},\n{wrapped}\n    ),'


def split(text: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "({") - (character in ")}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def drop_name(parameter: str) -> str:
    if "(*" in parameter:
        return "void*"  # a function
    return re.sub(r"\w+$", "", parameter).strip() if not parameter.endswith("*") else parameter


def written() -> str:
    header = Header(HEADER.read_text())
    parts = [HEAD, f"ABI_VERSION = {header.version}\n"]
    parts += [header.record(name) for name in header.records]
    out = parts[0]
    for part in parts[1:]:
        plain = not part.startswith("class ")
        out += ("\n" if plain and out is not HEAD and not out.rstrip().endswith("]") else "\n\n") + part
    return out + "\n\n" + "\n".join(
        [
            "# How a function fails: by its tw_status and a tw_error** behind its arguments, or by its tw_status alone. Of",
            "# others, what it returns.",
            '_FALLIBLE, _LAUNCH = "fallible", "launch"',
            "FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {",
            *(header.function(*f) for f in header.functions),
            "}",
            "",
        ]
    )


def main() -> int:
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    text = written()
    if not sys.argv[1:]:
        OUT.write_text(text)
        return 0
    if OUT.read_text() == text:
        return 0
    print(f"{OUT} is not what tilewright_c.h says: run python3 python/generate_c.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
