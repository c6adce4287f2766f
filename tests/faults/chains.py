"""One warehouse that lives through a chain of crashes, and what was seen of it after each."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.faults.harness import (
    Driver,
    Record,
    Spec,
    TableImage,
    changes_expected,
    drivers,
    read_tables,
    rows_expected,
    totals_expected,
)

__all__ = ["Chain", "Kill", "assert_consistent", "live_through"]


class Kill(NamedTuple):
    """Where a process died."""

    point: str
    attempt: str
    points: list[tuple[str, str]]
    """(point, attempt) of all that it had come to."""


@dataclass(frozen=True)
class Chain:
    """What was seen of one warehouse."""

    records: list[Record]
    killed: list[Kill]
    orders: list[tuple[str, ...]]
    """The order of the tables in each process that was killed."""
    after_kill: list[dict[str, TableImage]]
    """The tables as each process left them."""
    end: dict[str, TableImage]
    """The tables in the end."""
    ended: str

    def after_restart(self, step: int) -> dict[str, TableImage]:
        """The tables as the process after the kill left them."""
        return self.after_kill[step + 1] if step + 1 < len(self.after_kill) else self.end


def live_through(
    records: list[Record], crashes: Iterable[Spec], last: Callable[[Spec], Spec]
) -> Chain:
    """Let one process after the other be killed as it says, and one more run to its end.

    Args:
        crashes: of the processes that die, all in one folder.
        last: the one that does not, made of the last that did.
    """
    killed, orders, after_kill = [], [], []
    with drivers() as start:
        for spec in crashes:
            driver = start(spec, warm=True)
            code = driver.wait()
            assert code == -signal.SIGKILL, f"{spec.at}: {code}\n{driver.stderr()[-4000:]}"
            killed.append(_kill(driver, str(spec.at)))
            orders.append(spec.tables)
            after_kill.append(_images(spec))
        ended = start(last(spec), warm=True).report()["ended"]
    return Chain(records, killed, orders, after_kill, _images(spec), ended)


def _kill(driver: Driver, point: str) -> Kill:
    points = driver.points()
    # Other threads may have come to points of theirs meanwhile.
    (attempt,) = (attempt for name, attempt in points if name == "SIGKILL")
    return Kill(point, attempt, points)


def _images(spec: Spec) -> dict[str, TableImage]:
    return read_tables(spec.root, sorted(spec.tables))


def assert_consistent(records: Sequence[Record], table: str, image: TableImage) -> None:
    """The table holds what its log says, and its log says every record once, in order."""
    spans = [(p.start, p.end) for p in image.final]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
    if table == "rows":
        assert image.rows == rows_expected(list(records), image.final)
    elif table == "changes":
        assert image.rows == changes_expected(list(records), image.final)
    else:
        assert image.rows == totals_expected(list(records[: image.end]))
