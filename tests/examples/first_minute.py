"""Record a newcomer's first minute in a terminal as a picture of the README.

`python -m tests.examples.first_minute` makes it anew.

The commands are run, in a terminal of their own, and what they print is drawn with the seconds at
which it came.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "first-minute.svg"
COMMANDS = ("txn new sales", "txn preview sales.py:topology", "python sales.py")
_WIDTH = 100


def main() -> None:
    """Run the commands and write the picture."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO())
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for command in COMMANDS:
            console.print(Text(f"$ {command}", style="bold"))
            for at, line in run(command, folder):
                console.print(Text.assemble((f"{at - began:5.1f} s  ", "dim"), line))
            folder = Path(scratch) / "sales"
    picture = console.export_svg(title="The first minute")
    # Nothing is loaded from elsewhere when the picture is shown.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    PICTURE.write_text(picture, "utf-8")


def run(command: str, folder: Path) -> list[tuple[float, str]]:
    """Run a command in a terminal; return its lines, each with the time at which it came."""
    ours, theirs = pty.openpty()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "COLUMNS": str(_WIDTH - 9), "TERM": "dumb"}
    child = subprocess.Popen(
        command.split(), cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    lines: list[tuple[float, str]] = []
    rest = ""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux: the other end is closed
            break
        *whole, rest = (rest + piece.decode("utf-8", "replace")).split("\n")
        lines += [(time.monotonic(), _plain(line)) for line in whole]
    if child.wait():
        raise SystemExit("\n".join(line for _, line in lines))
    return [(at, line) for at, line in lines if line]


def _plain(line: str) -> str:
    """Return what a line shows in the end: without colours, and after its last carriage return."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip("\r").rpartition("\r")[2].rstrip()


if __name__ == "__main__":
    main()
