"""A real browser for the tests, and axe-core, which looks for what is not accessible.

python -m tests.dashboard.browser     # installs both where they are missing
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from txn.machine.jars import cache_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["axe_source", "browser", "chromium"]

AXE = "4.14.1"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """The browser's program; Debian's package where root may install it.

    Raises:
        OSError: there is none.
    """
    for name in NAMES:
        if found := shutil.which(name):
            return found
    if shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {"stdout": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"]
        more = ["fonts-dejavu-core", "fonts-liberation"]
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-q"], check=True, **quiet)
        subprocess.run([*install, *more], check=True, env=environ, **quiet)
        if found := shutil.which(NAMES[0]):
            return found
    raise OSError("there is no Chromium on the PATH: install it (apt install chromium)")


def axe_source() -> str:
    """The script of axe-core, fetched by npm into the cache of the user."""
    folder = cache_folder() / f"axe-core-{AXE}"
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".installing-", dir=folder.parent))
        try:
            quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts")
            command = ["npm", "install", "--prefix", str(scratch), *quiet, f"axe-core@{AXE}"]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
            with suppress(OSError):  # another process may have been faster
                scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return script.read_text("utf-8")


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium without a window, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    # Root may not use the browser's own sandbox, and it sees nothing but our page.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium(), args=arguments)
        try:
            yield found
        finally:
            found.close()


if __name__ == "__main__":
    try:
        chromium()
        axe_source()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"The browser of the tests could not be installed: {error}")
