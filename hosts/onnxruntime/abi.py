#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes abi.h: the part of ONNX Runtime's binary interface that the files of this folder use.

    python3 hosts/onnxruntime/abi.py HEADERS [--check]

HEADERS: a folder with onnxruntime_c_api.h and onnxruntime_ep_c_api.h. No package that pip or Debian installs has these
headers in a version with plugin execution providers, so the adapter could not be built where it is needed. The
interface is tables of function pointers that only grow. abi.h has the entries in use, in their places, and a void* for
each of the others. --check: compare instead of writing."""

import argparse
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TABLES = {"OrtApi": "g_api", "OrtEpApi": "g_ep_api", "OrtModelEditorApi": "g_model_api"}  # and the variables that the sources call them by
IMPLEMENTED = ("OrtAllocator", "OrtCustomOp", "OrtEp", "OrtEpFactory", "OrtKernelImpl", "OrtNodeComputeInfo", "OrtNodeFusionOptions")
ENUMS = {
    "OrtErrorCode": "ORT_(FAIL|INVALID_ARGUMENT|NOT_IMPLEMENTED|EP_FAIL)",
    "ONNXTensorElementDataType": ".*",
    "OrtLoggingLevel": ".*",
    "OrtOpAttrType": "ORT_OP_ATTR_(INT|FLOAT|STRING)",
    "OrtHardwareDeviceType": ".*",
    "OrtMemType": "OrtMemTypeDefault",
    "OrtCustomOpInputOutputCharacteristic": ".*",
}
HEAD = """// SPDX-License-Identifier: Apache-2.0
// The part of ONNX Runtime's binary interface that this folder uses, written by abi.py from the headers of API version
// {version}. Whatever is unused is a void*.
#pragma once

#include <cstddef>
#include <cstdint>

inline constexpr std::uint32_t kOrtApi = {wanted};  // that of ONNX Runtime 1.{wanted}, which later ones have, too

"""
WANTED = 24  # the first one with kernel registries


def text_of(headers):
    path = os.path.join(headers, "onnxruntime_c_api.h")
    done = subprocess.run(["c++", "-E", "-P", "-x", "c++", "-w", path], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"abi: error: the compiler cannot read {path}:\n{done.stderr[-1000:]}")
    text = re.sub(r"__attribute__\(\(\w+\)\)|\bnoexcept\b", "", done.stdout)
    return re.sub(r"\s+", " ", text), re.search(r"#define ORT_API_VERSION (\d+)", open(path).read())[1]


def used(table):
    names = set()
    for folder in (HERE, os.path.join(HERE, "operations")):
        for name in sorted(os.listdir(folder)):
            if name.endswith((".cpp", ".h")):
                names.update(re.findall(rf"\b{table}->(\w+)", open(os.path.join(folder, name)).read()))
    return names


def without_names(parameters):
    def one(parameter):
        parameter = re.sub(r"\b(struct|enum) ", "", parameter.strip())
        if "(*" in parameter:  # a function
            return re.sub(r"\(\* ?\w+\)", "(*)", parameter)
        words = re.fullmatch(r"(.*[\w*&] ?\*?)\b(\w+)(\[\])?", parameter)
        if words and re.search(r"[\s*]$", words[1]) and words[1].strip() not in ("const", ""):
            parameter = words[1].strip() + ("*" if words[3] else "")
        return re.sub(r"\s*\*", "*", parameter)

    parts, depth, last = [], 0, 0
    for i, c in enumerate(parameters):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(parameters[last:i])
            last = i + 1
    return ", ".join(one(p) for p in parts + [parameters[last:]])


def members(text, struct):
    body = re.search(rf"struct {struct} \{{(.*?)\}}( {struct})?;", text)[1]
    for member in filter(None, (m.strip() for m in body.split(";"))):
        function = re.fullmatch(r"(.*?)\(\s*\*\s*(\w+)\)\s*\((.*)\)", member)
        if function:
            result = re.sub(r"\s*\*", "*", function[1].replace("OrtStatusPtr", "OrtStatus*").strip())
            yield function[2], f"{result} (*{function[2]})({without_names(function[3].strip())})"
        else:
            yield member.split()[-1], member


def table(text, struct, names):
    lines, skipped, spaces = [], 0, 0
    for name, line in members(text, struct):
        if name not in names:
            skipped += 1
            continue
        if skipped:
            lines.append(f"void* unused{spaces}[{skipped}]")
            spaces, skipped = spaces + 1, 0
        lines.append(line)
        names.discard(name)
    if names:
        sys.exit(f"abi: error: {struct} of these headers has no {', '.join(sorted(names))}")
    return lines


def implemented(text, struct):
    for name, line in members(text, struct):
        simple = not re.search(r"OrtGraphicsInterop|Profil|Weightless|GraphCapture|ResourceCount|Importer|Incompatib|SyncStream", line)
        yield line if simple else f"void* {name}"


def generated(headers):
    text, version = text_of(headers)
    blocks = []
    for enum, wanted in ENUMS.items():
        body = re.search(rf"typedef enum {enum} \{{(.*?)\}}", text) or re.search(rf"enum {enum} \{{(.*?)\}}", text)
        value, lines = -1, []
        for item in filter(None, (i.strip() for i in body[1].split(","))):
            name, _, given = (s.strip() for s in item.partition("="))
            value = (int(given, 0) if re.fullmatch(r"-?\w+", given) and given[-1].isdigit() else value) if given else value + 1
            if re.fullmatch(wanted, name):
                lines.append(f"  {name} = {value},")
        blocks.append(f"enum {enum} {{\n" + "\n".join(lines) + "\n};\n")
    structs = [(s, table(text, s, used(v))) for s, v in TABLES.items()] + [(s, list(implemented(text, s))) for s in IMPLEMENTED]
    structs.append(("OrtApiBase", [line for _, line in members(text, "OrtApiBase")]))
    used_types = {t for _, lines in structs for line in lines for t in re.findall(r"\b(Ort\w+|ONNX\w+)\b", line)} | {"OrtKernelDefBuilder"}
    enums = used_types & {e for e in re.findall(r"enum (\w+)", text)} - set(ENUMS)
    callback = re.search(r"typedef OrtStatus\*\s*\(\* ?OrtKernelCreateFunc\)\((.*?)\);", text)[1]
    used_types |= set(re.findall(r"\b(Ort\w+)\b", callback))
    opaque = used_types - {"OrtKernelCreateFunc", "OrtStatusPtr"} - set(ENUMS) - enums
    blocks.append("\n".join(f"struct {name};" for name in sorted(opaque)) + "\n")
    blocks.append("\n".join(f"enum {name} : int;" for name in sorted(enums)) + ("\n" if enums else ""))
    blocks.append(f"using OrtKernelCreateFunc = OrtStatus* (*)({without_names(callback.strip())});\n")
    for struct, lines in structs:
        blocks.append(f"struct {struct} {{\n" + "\n".join(f"  {line};" for line in lines) + "\n};\n")
    return HEAD.format(version=version, wanted=WANTED) + "\n".join(filter(None, blocks)).replace("OrtStatusPtr", "OrtStatus*")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headers")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    path, text = os.path.join(HERE, "abi.h"), generated(args.headers)
    text = subprocess.run([os.environ.get("CLANG_FORMAT", "clang-format"), "-assume-filename", path], input=text, capture_output=True, text=True, check=True).stdout
    if not args.check:
        open(path, "w").write(text)
    elif open(path).read() != text:
        sys.exit(f"abi: error: {path} differs from what these headers say; write it again")


main()
