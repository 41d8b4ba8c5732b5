# SPDX-License-Identifier: Apache-2.0
"""Compiles README.md's C++ blocks, runs its shell blocks, and compares its and docs/*.md's generated tables with the tool.

With --write the tables are written instead of compared: check.py --source . --tool build/bin/tilewright --write
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

TABLE = re.compile(r"<!-- begin: (tilewright [^>]*?) -->\n(.*?)<!-- end -->", re.S)


def blocks(text: str, language: str) -> list:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def run(command, **options):
    print("+", command if isinstance(command, str) else shlex.join(map(str, command)), flush=True)
    return subprocess.run(command, text=True, **options)


def compile_programs(text: str, args) -> int:
    failures = 0
    for i, block in enumerate(blocks(text, "cpp")):
        source = args.work / f"snippet{i}.cpp"
        source.write_text(block)
        done = run([args.cxx, "-std=c++20", "-Wall", "-Wextra", source, f"-I{args.prefix}/include",
                    f"-L{args.prefix}/{args.libdir}", "-ltilewright", "-lsqlite3", "-pthread", "-ldl", "-o", source.with_suffix("")])
        failures += done.returncode != 0
    return failures


def run_commands(text: str, args) -> int:
    failures = 0
    environment = dict(os.environ, PATH=f"{args.tool.parent}:{os.environ['PATH']}",
                       TILEWRIGHT_CACHE=str(args.work / "cache" / "readme.db"))
    for block in blocks(text, "sh"):
        for line in filter(None, block.splitlines()):
            allowed = (0, 4) if line.endswith("# needs a GPU") else (0,)
            done = run(line, shell=True, cwd=args.source, env=environment, stdout=subprocess.DEVNULL)
            if done.returncode not in allowed:
                print(f"README.md: exit code {done.returncode}: {line}")
                failures += 1
    return failures


def table(command: str, args) -> str:
    words = shlex.split(command)
    return subprocess.run([args.tool, *words[1:]], check=True, text=True, stdout=subprocess.PIPE).stdout


def pages(args) -> list:
    return [args.source / "README.md", *sorted((args.source / "docs").glob("*.md"))]


def check_tables(args) -> int:
    failures = 0
    for page in pages(args):
        for command, found in TABLE.findall(page.read_text()):
            if found == table(command, args):
                continue
            print(f"{page.relative_to(args.source)}: the table of `{command}` is out of date; run check.py --write")
            failures += 1
    return failures


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--tool", type=lambda p: Path(p).resolve(), required=True)
    parser.add_argument("--prefix", type=Path)
    parser.add_argument("--libdir", default="lib")
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        for page in pages(args):
            text = page.read_text()
            replaced = TABLE.sub(lambda m: f"<!-- begin: {m[1]} -->\n{table(m[1], args)}<!-- end -->", text)
            if replaced != text:
                page.write_text(replaced)
        return 0
    text = (args.source / "README.md").read_text()
    shutil.rmtree(args.work, ignore_errors=True)
    (args.work / "cache").mkdir(parents=True, mode=0o700)
    failures = compile_programs(text, args) + run_commands(text, args) + check_tables(args)
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
