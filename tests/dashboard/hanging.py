"""A file that does not come: storage that does not answer, on a disk and without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["hanging"]


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Whoever reads this file waits until the body has ended, and is then told of an error."""
    kept, pipe = path.with_suffix(".kept"), path.with_suffix(".pipe")
    if path.exists():
        path.rename(kept)
    os.mkfifo(path)
    os.link(path, pipe)
    try:
        yield
    finally:
        if kept.exists():
            kept.replace(path)
        else:
            path.unlink()
        with suppress(OSError):  # nobody reads it
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        pipe.unlink()
