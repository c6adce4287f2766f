"""The crash matrix for group commit and compaction: SIGKILL with a group of three under way.

As in `test_crash_matrix`, one warehouse per kind of spout lives through all of it. Each process
holds its first commit turn until three txids behind it are processed, so that the next turn is
that of a group, in which it is killed. Two more are killed while a table is compacted.
"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.harness import (
    Record,
    Spec,
    TableImage,
    drivers,
    make_records,
    read_tables,
    rows_expected,
    totals_expected,
)

KINDS = ("transactional", "opaque")
TABLES = ("rows", "totals", "log")
ORDERS = (TABLES, ("log", "totals", "rows"))
GROUP = 3
GROUP_POINTS = (
    "before-publish",
    "between-publications",
    "after-publish",
    "before-committed",
    "after-committed",
    "between-publications",
)
COMPACTION_POINTS = ("maintenance-staged", "after-maintenance")
POINTS = (*GROUP_POINTS, *COMPACTION_POINTS)


@dataclass(frozen=True)
class Chain:
    """What was seen of one warehouse."""

    records: list[Record]
    killed: list[tuple[str, str, int]]
    """(point, attempt, txids in the commit turn that ran) at which each process died."""
    after_kill: list[dict[str, TableImage]]
    """The tables as each process left them."""
    end: dict[str, TableImage]
    ended: str

    def after_restart(self, step: int) -> dict[str, TableImage]:
        """The tables as the process after the kill left them."""
        return self.after_kill[step + 1] if step + 1 < len(self.after_kill) else self.end


@pytest.fixture(scope="module", params=KINDS)
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """A warehouse that lived through every crash, and then ran to its end."""
    folder: Path = tmp_path_factory.mktemp(f"groups-{request.param}")
    records = make_records(folder, 150)
    killed, after_kill = [], []
    config = {
        "max_spout_pending": GROUP + 1,
        "max_group_commit": GROUP,
        "max_processing_jobs": 1,
        "max_group_processing": 1,
    }
    with drivers() as start:
        for number, point in enumerate(POINTS):
            spec = Spec(
                folder=str(folder),
                kind=request.param,
                tables=ORDERS[number % 2],
                zookeeper=f"embedded:{folder}/zookeeper",
                at=point,
                group=GROUP if point in GROUP_POINTS else 0,
                config=config,
            )
            driver = start(spec)
            code = driver.wait()
            assert code == -signal.SIGKILL, f"{point}: {code}\n{driver.stderr()[-4000:]}"
            points = driver.points()
            (attempt,) = (attempt for name, attempt in points if name == "SIGKILL")
            groups = {at: name for name, at in points if name.startswith("group-of-")}
            size = int(groups.get(attempt, "group-of-0").removeprefix("group-of-"))
            killed.append((point, attempt, size))
            after_kill.append(read_tables(folder, TABLES))
        ended = start(spec.model_copy(update={"at": None, "group": 0})).report()["ended"]
    return Chain(records, killed, after_kill, read_tables(folder, TABLES), ended)


def assert_consistent(chain: Chain, table: str, image: TableImage) -> None:
    """The table holds what its log says, and its log says every record once, in order."""
    spans = [(p.start, p.end) for p in image.final]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
    if table == "rows":
        assert image.rows == rows_expected(chain.records, image.final)
    else:
        assert image.rows == totals_expected(chain.records[: image.end])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("step", range(len(POINTS)), ids=[f"{n}-{p}" for n, p in enumerate(POINTS)])
def test_a_driver_killed_in_a_group_leaves_and_its_successor_makes_a_table_that_equals_the_oracle(
    chain: Chain, step: int, table: str
) -> None:
    """A group that is killed at any point is in a table as a whole or not at all, and lands once.

    So does what is compacted.
    """
    assert chain.killed[step][0] == POINTS[step]
    assert_consistent(chain, table, chain.after_kill[step][table])
    assert_consistent(chain, table, chain.after_restart(step)[table])


@pytest.mark.parametrize("table", TABLES)
def test_after_every_crash_of_a_group_each_table_holds_every_record_exactly_once(
    chain: Chain, table: str
) -> None:
    """With groups and compaction, too, every table holds every record once in the end."""
    assert chain.ended == "caught_up"
    assert chain.end[table].end == len(chain.records)
    assert_consistent(chain, table, chain.end[table])


def test_the_processes_were_really_killed_in_a_group(chain: Chain) -> None:
    """Every turn in which a process was killed was that of three txids."""
    turns = chain.killed[: len(GROUP_POINTS)]
    assert [size for _, _, size in turns] == [GROUP] * len(turns)


@pytest.mark.parametrize("table", TABLES)
def test_versions_really_hold_groups(chain: Chain, table: str) -> None:
    """There are versions of three txids in the log of each table."""
    sizes = Counter(p.version for p in chain.end[table].publications)
    assert max(sizes.values()) == GROUP


def test_a_crash_between_publications_leaves_the_group_in_the_first_table_only(
    chain: Chain,
) -> None:
    """The matrix has really seen a table that was a whole group ahead of the others."""
    for number, point in enumerate(POINTS):
        if point == "between-publications":
            first, *others = ORDERS[number % 2]
            ends = {t: chain.after_kill[number][t].publications[-1].txid for t in TABLES}
            assert {ends[first] - ends[other] for other in others} == {GROUP}


def test_the_log_was_really_compacted(chain: Chain) -> None:
    """In the end there are fewer files as they were staged than txids."""
    assert len(chain.end["log"].files) < len(chain.end["log"].final)
