"""The crash matrix for group commit and compaction: SIGKILL with a group of three under way.

As in `test_crash_matrix`, one warehouse per kind of spout lives through all of it. Each process
holds its first commit turn until three txids behind it are processed, so that the next turn is
that of a group, in which it is killed. Two more are killed while a table is compacted. Unless the
tests are to be thorough, this is an opaque spout, which is killed at the points of `SUITE`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.chains import Chain, Kill, assert_consistent, live_through
from tests.faults.harness import Spec, make_records
from tests.thorough import THOROUGH

KINDS = ("transactional", "opaque") if THOROUGH else ("opaque",)
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
SUITE = {"between-publications", "after-committed", "maintenance-staged"}
CHAINS = {kind: tuple(point for point in POINTS if THOROUGH or point in SUITE) for kind in KINDS}
STEPS = [
    pytest.param(kind, step, id=f"{kind}-{step}-{point}")
    for kind in KINDS
    for step, point in enumerate(CHAINS[kind])
]


def live(kind: str, folders: pytest.TempPathFactory) -> Chain:
    """A warehouse that lived through every crash, and then ran to its end."""
    config = {
        "max_spout_pending": GROUP + 1,
        "max_group_commit": GROUP,
        "max_processing_jobs": 1,
        "max_group_processing": 1,
    }
    folder = folders.mktemp(f"groups-{kind}")
    crashes = [
        Spec(
            folder=str(folder),
            kind=kind,
            tables=ORDERS[number % 2],
            zookeeper=f"embedded:{folder}/zookeeper",
            at=point,
            group=GROUP if point in GROUP_POINTS else 0,
            config=config,
        )
        for number, point in enumerate(CHAINS[kind])
    ]
    return live_through(
        make_records(folder, 12 * len(crashes) + 6),
        crashes,
        lambda spec: spec.model_copy(update={"at": None, "group": 0}),
    )


@pytest.fixture(scope="module")
def transactional(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """The chain of a transactional spout."""
    return live("transactional", tmp_path_factory)


@pytest.fixture(scope="module")
def opaque(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """The chain of an opaque spout."""
    return live("opaque", tmp_path_factory)


@pytest.fixture(params=KINDS)
def chain(request: pytest.FixtureRequest) -> Chain:
    """The one chain, then the other."""
    found: Chain = request.getfixturevalue(request.param)
    return found


def turn_size(kill: Kill) -> int:
    """How many txids were in the commit turn in which the process died."""
    groups = {attempt: name for name, attempt in kill.points if name.startswith("group-of-")}
    return int(groups.get(kill.attempt, "group-of-0").removeprefix("group-of-"))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("kind", "step"), STEPS)
def test_a_driver_killed_in_a_group_leaves_and_its_successor_makes_a_table_that_equals_the_oracle(
    request: pytest.FixtureRequest, kind: str, step: int, table: str
) -> None:
    """A group that is killed at any point is in a table completely or not at all, and lands once.

    So does what is compacted.
    """
    chain: Chain = request.getfixturevalue(kind)
    assert chain.killed[step].point == CHAINS[kind][step]
    assert_consistent(chain.records, table, chain.after_kill[step][table])
    assert_consistent(chain.records, table, chain.after_restart(step)[table])


@pytest.mark.parametrize("table", TABLES)
def test_after_every_crash_of_a_group_each_table_holds_every_record_exactly_once(
    chain: Chain, table: str
) -> None:
    """With groups and compaction, too, every table holds every record once in the end."""
    assert chain.ended == "caught_up"
    assert chain.end[table].end == len(chain.records)
    assert_consistent(chain.records, table, chain.end[table])


def test_the_processes_were_really_killed_in_a_group(chain: Chain) -> None:
    """Every turn in which a process was killed was that of three txids."""
    turns = [kill for kill in chain.killed if kill.point in GROUP_POINTS]
    assert len(turns) >= 3
    assert [turn_size(kill) for kill in turns] == [GROUP] * len(turns)


@pytest.mark.parametrize("table", TABLES)
def test_versions_really_hold_groups(chain: Chain, table: str) -> None:
    """There are versions of three txids in the log of each table."""
    sizes = Counter(p.version for p in chain.end[table].publications)
    assert max(sizes.values()) == GROUP


def test_a_crash_between_publications_leaves_the_group_in_the_first_table_only(
    chain: Chain,
) -> None:
    """The matrix has really seen a table that was a whole group ahead of the others."""
    seen = 0
    for kill, order, images in zip(chain.killed, chain.orders, chain.after_kill, strict=True):
        if kill.point == "between-publications":
            first, *others = order
            ends = {t: images[t].publications[-1].txid for t in TABLES}
            assert {ends[first] - ends[other] for other in others} == {GROUP}
            seen += 1
    assert seen == 2


def test_the_log_was_really_compacted(chain: Chain) -> None:
    """In the end there are fewer files as they were staged than txids."""
    assert len(chain.end["log"].files) < len(chain.end["log"].final)
