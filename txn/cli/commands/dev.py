"""`txn dev`: preview a program again each time that its file is saved."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txn.cli.completion import topologies
from txn.cli.options import announce, session_for, session_options, settings_option
from txn.text import is_installed, is_the_users

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["dev", "saves"]

_POLL_SECS = 0.2
_SERVERS = ("kafka", "zookeeper")


@click.command()
@click.argument("target", metavar="FILE.py:TOPOLOGY", shell_complete=topologies)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Most rows to show of each table.",
)
@click.option("--table", help="Only this table, as the program names it, or the end of its path.")
@session_options
@settings_option
def dev(
    target: str,
    rows: int,
    table: str | None,
    master: str | None,
    conf: Mapping[str, str],
    settings: Sequence[str],
) -> None:
    """Preview a program again each time that it is saved, in one Spark session. Ctrl-C ends it.

    Watches FILE.py and the modules beside it. Writes nothing anywhere, as txn preview; an error of
    the program is shown, and the next save tries again. Spark's settings and jars are those of the
    first program that loads.
    """
    announce(f"{target}: loading the program")
    from txn.cli.commands.preview import show_preview
    from txn.cli.errors import numbered
    from txn.operations.loading import TargetError, load_topology

    file = Path(target.rpartition(":")[0] or target)
    if not file.is_file():
        hint = f" A server to try things with: txn trial {target}." if target in _SERVERS else ""
        raise TargetError(
            f"There is no file '{file}' to watch. Name a file: FILE.py:TOPOLOGY.{hint}"
        )
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as resources:
        spark: SparkSession | None = None
        for _ in saves(file.resolve(), time.sleep):
            began = time.monotonic()
            try:
                topology = load_topology(target, settings)
                if spark is None:
                    spark = resources.enter_context(session_for(topology, master, conf))
                show_preview(topology, spark, rows, table)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the next save may mend it
                click.echo(f"error: {numbered(error)}", err=True)
            announce(f"{time.monotonic() - began:.1f} s. Save {file} to see it again; Ctrl-C ends.")


def saves(file: Path, sleep: Callable[[float], None]) -> Iterator[None]:
    """Yield at once, and again each time that a program is saved, with its modules forgotten.

    A save while the caller is at work counts, too.

    Args:
        file: of the program; files beside it count, and modules below it that it has loaded.
    """
    known = _times(_files(file))
    while True:
        yield
        for path, at in _times(_own_modules(file.parent).values()).items():
            known.setdefault(path, at)  # loaded in this turn
        while (times := _times({*known, *_files(file)})) == known:
            sleep(_POLL_SECS)
        known = times
        for name in _own_modules(file.parent):
            del sys.modules[name]
        importlib.invalidate_caches()


def _files(file: Path) -> set[Path]:
    """Return the program and the files beside it, also one that could not be loaded."""
    return {file, *file.parent.glob("*.py")}


def _times(paths: Iterable[Path]) -> dict[Path, int]:
    """Return when each file was last changed; 0 for a file that is gone."""
    times = dict.fromkeys(paths, 0)
    for path in times:
        with contextlib.suppress(OSError):  # editors replace a file
            times[path] = path.stat().st_mtime_ns
    return times


def _own_modules(folder: Path) -> dict[str, Path]:
    """Return the modules that were loaded from a folder -> their files; no installed ones."""
    modules = {}
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "")
        is_own = is_the_users(str(path)) and not is_installed(str(path))
        if name != "__main__" and is_own and folder in path.parents:
            modules[name] = path
    return modules
