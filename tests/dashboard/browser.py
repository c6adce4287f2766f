"""A real browser for the tests, and axe-core, which looks for what is not accessible.

python -m tests.dashboard.browser     # installs both where they are missing
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.npm import installed

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
    return (installed("axe-core", AXE) / "axe.min.js").read_text("utf-8")


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
