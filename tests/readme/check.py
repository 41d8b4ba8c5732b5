# SPDX-License-Identifier: Apache-2.0
"""Checks README.md, ARCHITECTURE.md, CONTRIBUTING.md, SECURITY.md, CHANGELOG.md, bench/LOG.md and docs/**/*.md: compiles their
C++, runs their commands, and compares generated tables and pictures with what makes them, and lists of variables and commands with the code.

Every fenced block is checked. A `cpp` block is a program: it is compiled and linked against the installed library. An `sh` block
runs as one script, in a folder of its page's own with links to the checkout's files; README.md's has no links, because its commands work
in any folder. ~/.local is the installed prefix. A comment on the line above the block says otherwise:

  <!-- not run: REASON -->   an excerpt, or a command that the test cannot run
  <!-- needs a GPU -->       an sh block that must succeed with a GPU and end with 4 without one
  <!-- opens a device, without libnvrtc -->
                             an sh block that must succeed without libnvrtc; where there is no GPU with the driver double of --driver, too
  <!-- draws a picture -->   an sh block that is run where --python is given
  <!-- file: PATH -->        the block is written to PATH in the page's folder for later blocks; C++ is compiled too

`python` blocks are run by python/tests/test_readme.py. A block of another language must have one of these comments, and an
indented block is an error. Links between pages must
exist, and so must files that pages name. With --write, tables and pictures are written instead of compared:
check.py --source . --tool build/bin/tilewright --python build/venv-python/bin/python --write
"""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = re.compile(r"<!-- begin: ((?:tilewright|python3) [^>]*?) -->\n(.*?)<!-- end -->", re.S)
FENCE = re.compile(r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.S | re.M)
INDENTED = re.compile(r"^(?![ *\d-]|\s*$)[^\n]*\n\n+ {4}\S", re.M)
LINK = re.compile(r"\]\((?!https?:)([^)\s]*)\)")
LOG = "bench/LOG.md"  # history: it names files that are gone
MOST_WORDS = {"README.md": 900}
WIDEST = 140
PICTURE = "draws a picture"
WITHOUT_NVRTC = "opens a device, without libnvrtc"
ANYWHERE = ("README.md",)  # pages whose commands work outside the checkout
RESULTS = [f"bench/results/h200_gemm_{part}.json" for part in ("1024", "4096", "few")]
# What tilewright.plot draws, from which results. The other pictures are drawn by hand.
PICTURES = {"docs/gemm.svg": RESULTS,
            "docs/conv.svg": [f"bench/results/h100_{part}.json" for part in ("conv", "conv_formats")]}
# Names in backticks: of files, relative to one of these folders or anywhere, and of things in the code.
FILE = re.compile(r"`([\w.*/-]*[\w*-]\.(?:cpp|cuh|h|py|cmake|sh|svg|json))`")
ROOTS = ("", "templates", "templates/operations", "include", "tests/operation", "templates/operations/gemm/cuda/wgmma")
NAME = re.compile(r"`([A-Za-z_][\w:]*)(?:<\w+>)?(?:\(\))?`")
CODE = ("include", "templates", "jit", "cache", "tuner", "files", "quantize", "capi", "cli", "hosts", "bench", "tests", "cmake")
GUIDES = ("reading-guide.md", "ARCHITECTURE.md", "CONTRIBUTING.md")  # whose names of things are checked


def pages(source: Path) -> list:
    root = ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")
    return [*(source / f"{name}.md" for name in root), *sorted((source / "docs").rglob("*.md")), source / LOG]


def run(command, **options):
    print("+", command if isinstance(command, str) else shlex.join(map(str, command)), flush=True)
    return subprocess.run(command, text=True, **options)


class Checker:
    def __init__(self, args):
        self.args = args
        self.failures = 0
        self.words = set()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("TILEWRIGHT_", "XDG_"))}
        if "TILEWRIGHT_NVRTC" in os.environ:
            self.environment["TILEWRIGHT_NVRTC"] = os.environ["TILEWRIGHT_NVRTC"]

    def fail(self, where: str, what: str):
        print(f"{where}: {what}", flush=True)
        self.failures += 1

    def name(self, page: Path) -> str:
        return str(page.relative_to(self.args.source))

    # ---- blocks

    def prepare(self):
        args = self.args
        shutil.rmtree(args.work, ignore_errors=True)
        (args.work / "home").mkdir(parents=True, mode=0o700)
        (args.work / "home/.local").symlink_to(args.prefix)
        self.environment.update(HOME=str(args.work / "home"), CXX=args.cxx,
                                PATH=f"{args.prefix}/bin:{args.tool.parent}:{os.environ['PATH']}")
        if args.python:
            self.environment.update(TILEWRIGHT_PYTHON=args.python, PYTHONPATH=str(args.source / "python"))
        found = subprocess.run([args.tool, "archs", "--json"], check=True, text=True, stdout=subprocess.PIPE)
        self.has_gpu = bool(json.loads(found.stdout)["devices"])

    def folder(self, page: Path) -> Path:
        folder = self.args.work / page.relative_to(self.args.source).with_suffix("")
        if not folder.exists():
            folder.mkdir(parents=True)
            for entry in [] if self.name(page) in ANYWHERE else self.args.source.iterdir():
                if not entry.name.startswith((".", "build")):
                    (folder / entry.name).symlink_to(entry)
        return folder

    def compile(self, where: str, source: Path):
        args = self.args
        done = run([args.cxx, "-std=c++20", "-Wall", "-Wextra", source, f"-I{args.prefix}/include",
                    f"-L{args.prefix}/{args.libdir}", "-ltilewright", *(f"-l{name}" for name in args.needs.split(",")), "-pthread", "-ldl", "-o",
                    source.with_suffix(".out")])
        if done.returncode:
            self.fail(where, "this program does not compile")

    def script(self, where: str, text: str, folder: Path, expected: int, **variables):
        environment = {**self.environment, **variables}
        done = run("set -e\n" + text, shell=True, cwd=folder, stdout=subprocess.DEVNULL, env=environment)
        if done.returncode != expected:
            self.fail(where, f"exit code {done.returncode}, {expected} expected:\n{text}")

    def script_without_nvrtc(self, where: str, text: str, folder: Path):
        variables = {"TILEWRIGHT_NVRTC": "/nonexistent"}
        self.script(where, text, folder, 0, **variables)
        if self.has_gpu or not self.args.driver:
            return
        driver = self.args.work / "driver/libcuda.so.1"
        driver.parent.mkdir(exist_ok=True)
        driver.unlink(missing_ok=True)
        driver.symlink_to(self.args.driver)
        self.script(where, text, folder, 0, LD_LIBRARY_PATH=str(driver.parent), **variables)

    def check_blocks(self, page: Path):
        text = page.read_text()
        name = self.name(page)
        for at in INDENTED.finditer(text):
            self.fail(f"{name}:{text.count(chr(10), 0, at.end()) + 1}", "an indented block: fence it")
        for number, block in enumerate(FENCE.finditer(text)):
            where = f"{name}:{text.count(chr(10), 0, block.start('language')) + 1}"
            mark, language, content = block["mark"] or "", block["language"], block["text"]
            if mark.startswith("not run: ") or language == "python" or (mark == PICTURE and not self.args.python):
                continue
            folder = self.folder(page)
            source = folder / f"block{number}.cpp"
            if mark.startswith("file: "):
                source = folder / mark.removeprefix("file: ")
                source.parent.mkdir(parents=True, exist_ok=True)
                source.write_text(content)
                if language == "cpp":
                    self.compile(where, source)
            elif language == "cpp":
                source.write_text(content)
                self.compile(where, source)
            elif language == "sh":
                if mark == WITHOUT_NVRTC:
                    self.script_without_nvrtc(where, content, folder)
                else:
                    self.script(where, content, folder, 4 if mark == "needs a GPU" and not self.has_gpu else 0)
            else:
                self.fail(where, f"this test cannot run a block of '{language}': mark it '<!-- not run: REASON -->'")

    # ---- tables, pictures, links, length

    def table(self, command: str) -> str:
        words = shlex.split(command)
        words[0] = {"tilewright": str(self.args.tool), "python3": sys.executable}[words[0]]
        done = subprocess.run(words, cwd=self.args.source, check=True, text=True, stdout=subprocess.PIPE)
        return done.stdout

    def check_tables(self, page: Path):
        for command, found in TABLE.findall(page.read_text()):
            if found != self.table(command):
                self.fail(self.name(page), f"what `{command}` prints has changed; run check.py --write")

    def draw(self, picture: str, out: Path):
        subprocess.run([self.args.python, "-m", "tilewright.plot", *PICTURES[picture], "--out", out], cwd=self.args.source,
                       check=True, env={**os.environ, "PYTHONPATH": "python"})

    def check_pictures(self):
        if not self.args.python:
            return print("pictures are not compared: no --python", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for picture in PICTURES:
                drawn = Path(folder) / "picture.svg"
                self.draw(picture, drawn)
                if drawn.read_text() != (self.args.source / picture).read_text():
                    self.fail(picture, "its script draws another picture; run check.py --write")

    def check_links(self, page: Path):
        for target in LINK.findall(FENCE.sub("", page.read_text())):
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            if not file.exists():
                self.fail(self.name(page), f"a link to {target}, which does not exist")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                self.fail(self.name(page), f"a link to {target}: there is no such heading")

    def check_files(self, page: Path):
        """Pages without history name files and things that exist."""
        if page == self.args.source / LOG:
            return
        text = FENCE.sub("", page.read_text())
        made = re.findall(r"^<!-- file: (\S+) -->$", page.read_text(), re.M)
        for name in FILE.findall(text):
            found = any(any((self.args.source / root).glob(name)) for root in ROOTS)
            if "/" not in name:
                found = any(any((self.args.source / folder).rglob(name)) for folder in CODE)
            if not found and "NAME" not in name and name not in made:
                self.fail(self.name(page), f"there is no file {name}")
        if page.name not in GUIDES:
            return
        for name in NAME.findall(text):
            if name.split("::")[-1] not in self.known():
                self.fail(self.name(page), f"{name} does not occur in the code")

    def known(self) -> set:
        """Every word of the code, and every name of a folder or of a file without its ending."""
        if not self.words:
            for folder in CODE:
                for path in (self.args.source / folder).rglob("*"):
                    self.words.add(path.stem)
                    if path.suffix in (".h", ".cpp", ".cuh", ".cmake", ".txt"):
                        self.words.update(re.findall(r"[A-Za-z_]\w*", path.read_text()))
        return self.words

    def check_lists(self):
        """docs/reference/environment.md has every variable that the library reads, docs/use/command-line.md every command of the tool."""
        variables, commands = "docs/reference/environment.md", "docs/use/command-line.md"
        listed = set(re.findall(r"^\| `(TILEWRIGHT_\w+)`", (self.args.source / variables).read_text(), re.M))
        read = set(re.findall(r'"(TILEWRIGHT_\w+)"', (self.args.source / "tuner/options.cpp").read_text()))
        if listed != read:
            self.fail(variables, f"its table and tuner/options.cpp differ in {', '.join(sorted(listed ^ read))}")
        help_text = subprocess.run([self.args.tool, "--help"], check=True, text=True, stdout=subprocess.PIPE).stdout
        page = (self.args.source / commands).read_text()
        for command in re.findall(r"^  ([a-z]+)  ", help_text.partition("Subcommands:")[2], re.M):
            if f"`{command}" not in page:
                self.fail(commands, f"no line for the command {command}")

    def check_width(self, page: Path):
        """No line is too long, but in tables that a command prints."""
        text = TABLE.sub(lambda m: "\n" * m[0].count("\n"), page.read_text())
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > WIDEST and page != self.args.source / LOG:
                self.fail(f"{self.name(page)}:{number}", f"{len(line)} columns; at most {WIDEST}")

    def check_length(self, page: Path):
        words = len(re.findall(r"\S*\w\S*", page.read_text()))
        if words > MOST_WORDS.get(self.name(page), words):
            self.fail(self.name(page), f"{words} words; at most {MOST_WORDS[self.name(page)]}")

    def check(self) -> int:
        self.prepare()
        for page in pages(self.args.source):
            self.check_length(page)
            self.check_width(page)
            self.check_links(page)
            self.check_files(page)
            self.check_tables(page)
            self.check_blocks(page)
        self.check_pictures()
        self.check_lists()
        print(f"{self.failures} failures")
        return 1 if self.failures else 0

    def write(self) -> int:
        for page in pages(self.args.source):
            text = page.read_text()
            replaced = TABLE.sub(lambda m: f"<!-- begin: {m[1]} -->\n{self.table(m[1])}<!-- end -->", text)
            if replaced != text:
                page.write_text(replaced)
        for picture in PICTURES if self.args.python else ():
            self.draw(picture, self.args.source / picture)
        return 0


def anchors(page: Path) -> set:
    """As GitHub makes them of headings: lower case, no punctuation, a hyphen for each space."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=lambda p: Path(p).resolve(), required=True)
    parser.add_argument("--tool", type=lambda p: Path(p).resolve(), required=True)
    parser.add_argument("--prefix", type=lambda p: Path(p).resolve())
    parser.add_argument("--libdir", default="lib")
    parser.add_argument("--needs", default="sqlite3", help="libraries that the installed one needs, with commas between")
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--driver", type=lambda p: Path(p).resolve(), help="the driver double, for machines without a GPU")
    parser.add_argument("--work", type=lambda p: Path(p).resolve())
    parser.add_argument("--python", help="a Python with python/tests/requirements.txt; without one pictures are left out")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    checker = Checker(args)
    return checker.write() if args.write else checker.check()


if __name__ == "__main__":
    sys.exit(main())
