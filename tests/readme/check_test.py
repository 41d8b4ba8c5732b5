# SPDX-License-Identifier: Apache-2.0
"""check.py against pages that it must refuse, and some that it must not. usage: check_test.py CXX"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
CXX = sys.argv.pop(1) if len(sys.argv) > 1 else "c++"
# Without a GPU: `archs` finds no device, `tune` ends with 4.
TOOL = """#!/bin/sh
case $1 in
  archs) echo '{"devices": []}' ;;
  tune) exit 4 ;;
  table) echo '| a |' ;;
  --help) printf 'Subcommands:\\n  plan    Plans\\n' ;;
esac
"""


def fenced(language: str, text: str, mark: str = "") -> str:
    return f"words\n\n{f'<!-- {mark} -->' + chr(10) if mark else ''}```{language}\n{text}\n```\n"


class Check(unittest.TestCase):
    def check(self, page: str, *more, environment="| `TILEWRIGHT_A` |\n", readme="words\n", drawn="<svg/>"):
        """The exit code and the output for a docs/page.md."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "source"
            for name in ("docs/use", "docs/reference", "bench", "tuner", "prefix/bin"):
                (source / name).mkdir(parents=True)
            for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG", "bench/LOG"):
                (source / f"{name}.md").write_text(readme if name == "README" else "words\n")
            (source / "python/tilewright").mkdir(parents=True)
            (source / "python/tilewright/plot.py").write_text("import sys\nopen(sys.argv[-1], 'w').write('<svg/>')\n")
            (source / "bench/table.py").write_text("")
            for picture in ("gemm.svg", "conv.svg"):
                (source / "docs" / picture).write_text(drawn)
            (source / "tuner/options.cpp").write_text('read("TILEWRIGHT_A")')
            (source / "docs/reference/environment.md").write_text(environment)
            (source / "docs/use/command-line.md").write_text("`plan`\n")
            tool = Path(folder) / "tilewright"
            tool.write_text(TOOL)
            tool.chmod(0o700)
            (source / "prefix/bin/tilewright").symlink_to(tool)
            (source / "docs/page.md").write_text(page)
            done = subprocess.run([sys.executable, HERE / "check.py", "--source", source, "--tool", tool, "--prefix",
                                   source / "prefix", "--python", sys.executable, "--work", Path(folder) / "work", "--cxx", CXX, *more],
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            return done.returncode, done.stdout, (source / "docs/page.md").read_text()

    def accepted(self, page: str):
        code, said, _ = self.check(page)
        self.assertEqual(code, 0, said)

    def refused(self, page: str, why: str):
        code, said, _ = self.check(page)
        self.assertEqual(code, 1, said)
        self.assertIn(why, said)

    def test_commands(self):
        self.accepted(fenced("sh", "tilewright plan\ncd /"))
        self.refused(fenced("sh", "false\ntrue"), "docs/page.md:3: exit code 1, 0 expected")
        self.refused(fenced("sh", "no_such_command"), "exit code 127")
        self.accepted(fenced("sh", "false", "not run: a reason"))

    def test_commands_that_need_a_gpu(self):
        self.accepted(fenced("sh", "tilewright tune", "needs a GPU"))
        self.refused(fenced("sh", "tilewright tune"), "exit code 4, 0 expected")
        self.refused(fenced("sh", "tilewright plan", "needs a GPU"), "exit code 0, 4 expected")
        mark = "opens a device, without libnvrtc"
        self.refused(fenced("sh", "false", mark), "exit code 1, 0 expected")
        # Once on the CPU, and once with the double of a driver.
        text = "test $TILEWRIGHT_NVRTC = /nonexistent\ntest ! -e runs || test -e $LD_LIBRARY_PATH/libcuda.so.1\necho >>runs"
        code, said, _ = self.check(fenced("sh", text, mark) + fenced("sh", "test $(wc -l <runs) = 2"), "--driver", __file__)
        self.assertEqual(code, 0, said)

    def test_a_page_is_one_folder(self):
        self.accepted(fenced("sh", "echo 1 >a") + fenced("sh", "grep 1 a && test -d docs"))
        self.accepted(fenced("cmake", "x", "file: app/CMakeLists.txt") + fenced("sh", "grep x app/CMakeLists.txt"))

    def test_readme_runs_outside_the_checkout(self):
        self.accepted(fenced("sh", "test -e bench/table.py && test -e ~/.local/bin/tilewright"))
        readme = fenced("sh", "test -e bench/table.py")
        code, said, _ = self.check("words\n", readme=readme)
        self.assertEqual(code, 1)
        self.assertIn("README.md:3: exit code 1", said)

    def test_programs(self):
        self.refused(fenced("cpp", "int main() { return nothing; }"), "does not compile")
        self.refused(fenced("cpp", "int main() { return nothing; }", "file: app/main.cpp"), "does not compile")
        self.accepted(fenced("cpp", "nothing", "not run: an excerpt"))

    def test_blocks_that_cannot_run_are_marked(self):
        self.refused(fenced("text", "words"), "cannot run a block of 'text'")
        self.refused(fenced("", "words"), "cannot run a block of ''")
        self.refused(fenced("text", "words", "not run"), "cannot run")
        self.refused("words\n\n    indented\n", "an indented block")
        self.accepted("* item\n\n    goes on\n")

    def test_tables(self):
        table = "<!-- begin: tilewright table -->\n{}<!-- end -->\n"
        self.accepted(table.format("| a |\n"))
        self.refused(table.format("| b |\n"), "check.py --write")
        code, said, page = self.check(table.format("| b |\n"), "--write")
        self.assertEqual((code, page), (0, table.format("| a |\n")), said)

    def test_pictures(self):
        code, said, _ = self.check("words\n", drawn="<svg>other</svg>")
        self.assertEqual(code, 1, said)
        self.assertIn("docs/gemm.svg: its script draws another picture", said)

    def test_files(self):
        self.accepted("`bench/table.py`, `python/tilewright/*.py`, `templates/formats/NAME.cuh`\n")
        self.refused("`bench/no_plot.py`\n", "there is no file bench/no_plot.py")

    def test_width(self):
        self.accepted("x" * 140 + "\n\n<!-- begin: tilewright table -->\n| a |\n<!-- end -->\n")
        self.refused("x" * 141 + "\n", "docs/page.md:1: 141 columns; at most 140")

    def test_lists(self):
        code, said, _ = self.check("words\n", environment="| `TILEWRIGHT_B` |\n")
        self.assertEqual(code, 1)
        self.assertIn("differ in TILEWRIGHT_A, TILEWRIGHT_B", said)

    def test_links(self):
        self.accepted("# A heading: `x`, (y)\n\n[a](page.md#a-heading-x-y) [b](../README.md) [c](https://example.com/x)\n")
        self.refused("[a](nowhere.md)\n", "does not exist")
        self.refused("# A\n\n[a](#b)\n", "no such heading")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
