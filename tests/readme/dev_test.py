# SPDX-License-Identifier: Apache-2.0
"""./dev COMMAND --help prints help, whatever the command, and starts nothing."""
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

DEV = Path(__file__).resolve().parents[2] / "dev"


class Help(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        shutil.copy(DEV, self.folder.name)

    def dev(self, *words):
        done = subprocess.run(["sh", "dev", *words], cwd=self.folder.name, text=True, capture_output=True)
        self.assertEqual([entry.name for entry in Path(self.folder.name).iterdir()], ["dev"], words)  # nothing was built
        return done

    def test_of_every_command(self):
        commands = re.findall(r"^  ([a-z]+)  ", self.dev("help").stdout, re.M)
        self.assertIn("gpu", commands)
        for command in commands:
            for flag in ("--help", "-h"):
                done = self.dev(command, flag)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(re.findall(r"^  ([a-z]+)  ", done.stdout, re.M), [command])

    def test_of_no_command(self):
        done = self.dev("nothing", "--help")
        self.assertEqual(done.returncode, 1)
        self.assertIn("unknown command 'nothing'", done.stderr)


if __name__ == "__main__":
    unittest.main()
