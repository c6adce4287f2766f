"""SIGKILL of the driver at every named point, for every kind of spout and table.

One warehouse per kind of spout lives through all of it: each process is killed at the next point,
the next process takes over what it left. The order of the tables alternates, so that between
publications the append table and the upsert table are in turn the one that has the txid already;
the third one, what each txid changed in the second, is staged in the commit turn.

Unless the tests are to be thorough, a point is tried with one kind of spout (`SUITE`), and with
neither if nothing but scratch files becomes durable between it and the one before. The kinds take
turns in the parts of the suite.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.faults.chains import Chain, assert_consistent, live_through
from tests.faults.harness import Spec, TableImage, make_records
from tests.thorough import THOROUGH, by_turns
from txn.engine.base.killpoints import POINTS

KINDS = by_turns(("transactional", "opaque"))
TABLES = ("rows", "totals", "changes")
ORDERS = (TABLES, ("totals", "changes", "rows"))


@dataclass(frozen=True)
class Crash:
    """Where a process of the chain is killed."""

    point: str
    fresh: bool = False
    order: tuple[str, ...] = TABLES

    @property
    def name(self) -> str:
        """For the test's name."""
        first = "-first-txid" if self.fresh else ""
        return f"{self.point}{first}-{self.order[0]}-first"


CHAIN = (
    Crash("between-publications", fresh=True),
    *(Crash(point, order=ORDERS[number % 2]) for number, point in enumerate(POINTS)),
    Crash("between-publications"),
)
SUITE = {
    "transactional": {"after-start", "after-committed"},
    "opaque": {"after-staging", "between-publications", "after-publish"},
}
CHAINS = {
    kind: tuple(crash for crash in CHAIN if THOROUGH or crash.fresh or crash.point in SUITE[kind])
    for kind in KINDS
}
STEPS = [
    pytest.param(kind, step, id=f"{kind}-{crash.name}")
    for kind in KINDS
    for step, crash in enumerate(CHAINS[kind])
]


def live(kind: str, folders: pytest.TempPathFactory) -> Chain:
    """A warehouse that lived through every crash, and then ran to its end."""
    folder = folders.mktemp(f"crash-{kind}")
    crashes = [
        Spec(
            folder=str(folder),
            kind=kind,
            tables=crash.order,
            zookeeper=f"embedded:{folder}/zookeeper",
            at=crash.point,
            fresh=crash.fresh,
            config={"max_spout_pending": 2, "batch_emit_interval_ms": 1},
        )
        for crash in CHAINS[kind]
    ]
    found = live_through(
        make_records(folder, 4 * len(crashes) + 8),
        crashes,
        lambda spec: spec.model_copy(update={"at": None, "tables": TABLES}),
    )
    assert all((kill.point, kill.attempt) in kill.points for kill in found.killed)
    return found


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


def published(images: dict[str, TableImage]) -> int:
    """How many txids the tables hold, counted in each: what a process that works adds to."""
    return sum(len(image.final) for image in images.values())


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("kind", "step"), STEPS)
def test_a_killed_driver_leaves_and_its_successor_makes_a_table_that_equals_the_oracle(
    request: pytest.FixtureRequest, kind: str, step: int, table: str
) -> None:
    """Killed at any point, the driver leaves whole txids; the next one continues row for row."""
    chain: Chain = request.getfixturevalue(kind)
    assert chain.killed[step].point == CHAINS[kind][step].point
    left, continued = chain.after_kill[step][table], chain.after_restart(step)[table]
    assert_consistent(chain.records, table, left)
    assert_consistent(chain.records, table, continued)
    assert published(chain.after_restart(step)) > published(chain.after_kill[step])


@pytest.mark.parametrize("table", TABLES)
def test_after_every_crash_each_table_holds_every_record_exactly_once(
    chain: Chain, table: str
) -> None:
    """Kill any process at any moment: after a restart every table holds every record in exactly one
    txid.

    Trident row 8.
    """
    assert chain.ended == "caught_up"
    assert chain.end[table].end == len(chain.records)
    assert_consistent(chain.records, table, chain.end[table])


@pytest.mark.parametrize("table", TABLES)
def test_the_txids_in_a_tables_history_strictly_increase(chain: Chain, table: str) -> None:
    """Txids strictly increase in a table's history, and a txid that appears again has a newer
    attempt.
    """
    orders = [p.order for p in chain.end[table].publications]
    assert orders == sorted(set(orders))
    txids = [p.txid for p in chain.end[table].final]
    assert txids == list(range(1, len(txids) + 1))


@pytest.mark.parametrize("table", TABLES)
def test_no_file_of_a_dead_attempt_is_visible(chain: Chain, table: str) -> None:
    """Readers never see a file of a dead attempt."""
    for image in (*(images[table] for images in chain.after_kill), chain.end[table]):
        assert set(image.files) <= {(p.txid, p.attempt) for p in image.final}


def test_all_tables_agree_on_what_each_txid_read(chain: Chain) -> None:
    """The publication of a txid that stands has read the same records in every table."""
    rows, *others = ([(p.txid, p.start, p.end) for p in chain.end[t].final] for t in TABLES)
    assert [rows, rows] == others


def test_a_crash_between_publications_leaves_the_txid_in_the_first_table_only(chain: Chain) -> None:
    """The matrix has really seen a table that was ahead of the other, both ways."""
    seen = []
    for kill, order, images in zip(chain.killed, chain.orders, chain.after_kill, strict=True):
        if kill.point == "between-publications":
            first, *others = (len(images[table].final) for table in order)
            seen.append((order[0], first - max(others)))
    assert seen == [("rows", 1), ("totals", 1), ("rows", 1)][: len(seen)]
    assert seen
