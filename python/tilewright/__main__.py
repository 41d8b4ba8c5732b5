# SPDX-License-Identifier: Apache-2.0
"""python -m tilewright ...: replaces this process by the command line tool."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def packaged_tool() -> str | None:
    """$TILEWRIGHT_CLI, else the package's own; None if there is none."""
    path = os.environ.get("TILEWRIGHT_CLI") or os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "_bin", "tilewright"
    )
    return path if os.access(path, os.X_OK) and os.path.isfile(path) else None


def main() -> NoReturn:
    tool = packaged_tool()
    if tool is None:
        sys.exit("tilewright: the command line tool is not in this package; install the wheel, or set TILEWRIGHT_CLI")
    from .engine import nvrtc_of_environment

    nvrtc = nvrtc_of_environment()
    if nvrtc is not None:
        os.environ["TILEWRIGHT_NVRTC"] = nvrtc
    # The tool would inherit Python's ignored SIGPIPE: `| head` would end in an error message.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(tool, [tool, *sys.argv[1:]])


if __name__ == "__main__":
    main()
