"""The wheel and the archive of sources, built as a release builds them."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build the "wheel" or the "sdist" of a source tree into a folder."""
    program = f"from hatchling.build import build_{kind} as build; print(build({str(folder)!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=source, capture_output=True, text=True, check=True
    )
    return folder / ended.stdout.split()[-1]


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into an environment that borrows all else from this one; return its Python.

    This environment's own `txn`, which is installed as editable, is not visible there.
    """
    venv.create(folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-compile", str(wheel)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (borrowed,) = Path(sys.prefix).glob("lib/python3*/site-packages")
    (packages / "borrowed.pth").write_text(f"{borrowed}\n")
    return python
