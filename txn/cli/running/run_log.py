"""The log of `txn run`: a file per topology, in its home."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
from collections.abc import Iterator, Mapping
from pathlib import Path

from txn.dashboard.watching.run_files import LOG_FOLDER
from txn.logs import JsonFormatter

__all__ = ["logging_to_file"]

_LOG_BYTES = 5_000_000
_FORMATS: Mapping[str, logging.Formatter] = {
    "text": logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"),
    "json": JsonFormatter(),
}

log = logging.getLogger("txn")


@contextlib.contextmanager
def logging_to_file(
    topology: str, level: str, form: str, home: Path = Path()
) -> Iterator[Path | None]:
    """Send the log of `txn`, and warnings of its libraries, to a file of the topology.

    Args:
        form: "text" or "json" (`txn.logs.JsonFormatter`).
        home: the folder whose `.txn` has the log.

    Yields:
        The file; None if the folder cannot be written to: then nothing is logged.
    """
    path = home / LOG_FOLDER / f"{topology}.log"
    handler: logging.Handler
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = file = logging.handlers.RotatingFileHandler(
            path,
            maxBytes=_LOG_BYTES,
            backupCount=1,
            encoding="utf-8",
            errors="backslashreplace",  # a library may log the name of a file that is not UTF-8
        )
        if _is_json(path) is (form == "text"):  # a file has one format
            file.doRollover()
        written: Path | None = path
    except OSError:
        handler, written = logging.NullHandler(), None
    handler.setFormatter(_FORMATS[form])
    # On the root logger: without any handler Python prints warnings into the live view.
    root = logging.getLogger()
    before = log.level
    root.addHandler(handler)
    log.setLevel(level.upper())
    try:
        yield written
    finally:
        root.removeHandler(handler)
        log.setLevel(before)
        handler.close()


def _is_json(path: Path) -> bool | None:
    """Return True if a log has the format "json"; None: it is empty."""
    with path.open("rb") as file:
        first = file.read(1)
    return first == b"{" if first else None
