"""What a run asks of its spouts for people to see: it must not be able to harm the run."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from spouts.files import FileSpout
from spouts.memory import MemoryOpaqueSpout, MemoryPosition, MemoryTransactionalSpout
from tests.faults.harness import wait_for
from txn import Topology, TopologyConfig
from txn.attempts import TransactionAttempt
from txn.dataflow.graph import Source
from txn.engine.work.questions import PAUSE_SECS, TIMEOUT_SECS, Questions
from txn.engine.work.spout_facts import SpoutFacts
from txn.engine.work.spouts import Spouts
from txn.interfaces import Lag
from txn.observers import RunBegan, RunEvent
from txn.protocol.encoding import NODE_LIMIT, encode
from txn.protocol.events import Plan
from txn.protocol.order_records import notices_record
from txn.protocol.records import NoticesRecord
from txn.testing import MemoryNodes, MemoryProgress, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [[("a",), ("b",)], [("c",)], [("d",)]]


class Answers(MemoryTransactionalSpout):
    """Answers every question for a number with what it was given, or raises it."""

    def __init__(self, answer: Any) -> None:
        super().__init__(ROWS, "k string")
        self.answer = answer
        self.threads: set[int] = set()

    def _told(self) -> Any:
        self.threads.add(threading.get_ident())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def planned_rows(self, metadata: MemoryPosition) -> Any:
        """See the class."""
        return self._told()

    def planned_bytes(self, metadata: MemoryPosition) -> Any:
        """See the class."""
        return self._told()

    def lag(self, newest: MemoryPosition | None) -> Any:
        """See the class."""
        return self._told()

    def notices(self) -> Any:
        """See the class."""
        return self._told()


class Hangs(Answers):
    """Answers no such question before the test is over."""

    def __init__(self) -> None:
        super().__init__(None)
        self.over = threading.Event()
        self.asked = 0

    def _told(self) -> Any:
        self.asked += 1
        self.over.wait(60)


class Places(MemoryTransactionalSpout):
    """Names as its places what it was given, or raises it; None: it does not come back."""

    def __init__(self, answer: Any) -> None:
        super().__init__(ROWS, "k string")
        self.answer = answer
        self.over = threading.Event()

    def locations(self) -> Any:
        """See the class."""
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            self.over.wait(60)
        return self.answer


class Notices(MemoryTransactionalSpout):
    """Has the notices that it was given, one after the other; the last ones for good."""

    def __init__(self, *said: Any) -> None:
        super().__init__(ROWS, "k string")
        self.said = list(said)

    def notices(self) -> Any:
        """See the class."""
        return self.said.pop(0) if len(self.said) > 1 else self.said[0]


class Kept:
    """Keeps the places that a run reads."""

    sources: Any = None

    def observe(self, event: RunEvent) -> None:
        """See the class."""
        if isinstance(event, RunBegan):
            self.sources = event.sources


class Writers(MemoryProgress):
    """Remembers which thread writes: the protocol's."""

    threads: frozenset[int] = frozenset()

    def persist_committed(self, *args: Any) -> None:
        """As it is."""
        self.threads |= {threading.get_ident()}
        super().persist_committed(*args)


class Keeps(MemoryProgress):
    """Keeps what was written of notices."""

    def __init__(self, topology: str) -> None:
        super().__init__(topology)
        self.records: list[NoticesRecord] = []

    def persist_notices(self, record: NoticesRecord) -> None:
        """As it is."""
        super().persist_notices(record)
        self.records.append(record)


@pytest.mark.parametrize("answer", [OSError("no number"), "7", -1, 1.5, Lag(records=-1)])
def test_a_number_that_cannot_be_had_is_told_once_and_not_known(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """By stream, spout and method; whatever a plugin raises or returns."""
    spouts = Spouts("t", [Source("s", Answers(answer))])
    for _ in range(2):
        spouts.plan(Plan(TransactionAttempt(1), ("s",), {}), window_full=False)
        read = spouts.facts.planned_input(spouts.parsed_by_source({"s": {"index": 0}}))
    assert (dict(read.records), dict(read.bytes), dict(spouts.facts.lags)) == (
        {"s": None},
        {"s": None},
        {},
    )
    told = [message.partition(" raised ")[0] for message in caplog.messages]
    names = ("planned_rows", "planned_bytes", "lag", "notices")
    assert told == [f"[t] Answers.{name} of stream 's'" for name in names]


def test_who_hangs_over_a_number_is_waited_for_once(caplog: pytest.LogCaptureFixture) -> None:
    """For a second; nobody is asked again who has not come back, nor within a minute after it."""
    spout = Hangs()
    spouts = Spouts("t", [Source("s", spout)])
    began = time.monotonic()
    for txid in range(1, 20):
        spouts.plan(Plan(TransactionAttempt(txid), ("s",), {}), window_full=False)
        read = spouts.facts.planned_input(spouts.parsed_by_source({"s": {"index": 0}}))
        assert read.records == {"s": None}
    assert 3 * TIMEOUT_SECS <= time.monotonic() - began < 4 * TIMEOUT_SECS
    assert (spout.asked, dict(spouts.facts.lags)) == (3, {})
    told = [message.partition(" gave no answer")[0] for message in caplog.messages]
    assert told == [
        "[t] Hangs.planned_rows or planned_bytes of stream 's', for its lag",
        "[t] Hangs.lag or notices of stream 's'",
        "[t] Hangs.planned_rows or planned_bytes of stream 's'",
    ]
    spout.over.set()
    spouts.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (OSError("no place"), "raised OSError: no place"),
        ("data/rows", "raised TypeError: str is not a sequence of str"),
        ([Path("data")], "raised TypeError: list is not a sequence of str"),
        (None, "gave no answer within 1 s"),
    ],
    ids=["raises", "a text", "paths", "hangs"],
)
def test_a_place_that_cannot_be_named_is_told_once(
    answer: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The places are for lineage only: there are none then, and the run begins."""
    spout = Places(answer)
    facts = SpoutFacts("t")
    assert facts.locations(Source("s", spout)) == facts.locations(Source("s", spout)) == ()
    (told,) = [message for message in caplog.messages if "locations of stream 's'" in message]
    assert said in told
    spout.over.set()
    facts.close()


def test_a_run_begins_although_a_spout_cannot_name_its_places(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its observers are told of no places, and every record is committed."""
    spout, kept = Places(OSError("no place")), Kept()
    topology = Topology("t")
    topology.stream("s", spout).partition_persist(AppendTable(tmp_path / "rows"))
    report = run_in_memory(topology, spark, observers=[kept])
    assert (report.batches_committed, report.ended) == (len(ROWS), "caught_up")
    assert kept.sources == {}


def test_who_came_back_is_asked_again_after_a_pause() -> None:
    """A slow question may have been slow once; its late answer is not shown."""
    now = [0.0]
    questions = Questions("t", monotonic=lambda: now[0])
    over = threading.Event()
    assert questions.ask("lag", lambda: over.wait(60)) is None
    over.set()
    wait_for(questions._asked["lag"].done, what="the late answer")
    assert questions.ask("lag", lambda: 7) is None
    now[0] = PAUSE_SECS
    assert questions.ask("lag", lambda: 7) == 7
    questions.close()


def test_the_lag_of_a_source_is_what_is_not_committed() -> None:
    """What is planned is a part of it, until it is committed; what is left to plan is that of the
    newest plan, and a replay that asks for an old txid changes nothing.
    """
    spouts = Spouts("t", [Source("s", MemoryTransactionalSpout(ROWS, "k string"))])
    seen = []

    def look() -> None:
        facts = spouts.facts
        (ahead,), (planned,) = facts.ahead.values(), facts.planned.values()
        seen.append((ahead.records, planned.records))
        assert facts.lags == {"s": Lag(records=sum(seen[-1]))}

    for txid, previous in ((1, {}), (2, {"s": {"index": 0}}), (4, {"s": {"index": 2}})):
        spouts.plan(Plan(TransactionAttempt(txid), ("s",), previous), window_full=False)
        look()
    spouts.plan(Plan(TransactionAttempt(1), ("s",), {}, is_new=False), window_full=False)
    look()
    for txid in (1, 4):
        spouts.facts.committed(txid)
        look()
    assert seen == [(2, 2), (1, 3), (0, 3), (0, 3), (0, 1), (0, 0)]


@pytest.mark.parametrize("verify", ["edges", "rows"])
def test_a_spout_that_cannot_count_neither_ends_nor_stalls_a_run(
    spark: SparkSession, warehouse: Path, verify: Any
) -> None:
    """It is asked on other threads than the protocol's; every record is committed."""
    spout = Answers(OSError("no number"))
    topology = Topology(warehouse.parent.name, TopologyConfig(verify=verify))
    topology.stream("s", spout).partition_persist(AppendTable(warehouse / "t"))
    store = Writers(topology.name)
    running = topology.start(spark, until="caught_up", store=store)
    report = running.await_termination()
    assert (report.ended, report.rows_staged, report.replays) == ("caught_up", 4, 0)
    assert (report.input_records, report.input_bytes, running.status().lags) == (None, None, {})
    assert spout.threads
    assert not spout.threads & store.threads


def test_a_spout_that_hangs_over_its_numbers_holds_up_no_run(
    spark: SparkSession, warehouse: Path
) -> None:
    """Every record is committed, and the end names no thread."""
    spout = Hangs()
    topology = Topology(warehouse.parent.name, TopologyConfig(stop_grace_secs=5))
    topology.stream("s", spout).partition_persist(AppendTable(warehouse / "t"))
    running = topology.start(spark, until="caught_up", store=MemoryProgress(topology.name))
    try:
        wait_for(lambda: running.status().batches_committed == 3, what="three commits")
        report = running.await_termination()
    finally:
        spout.over.set()
        running.stop()
    assert (report.ended, report.rows_staged, report.replays) == ("caught_up", 4, 0)


@pytest.mark.parametrize("said", ["one text", [1], None])
def test_notices_that_are_none_are_told_in_the_log(
    said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A text is a sequence of letters: it is refused as such, and nothing is shown."""
    spouts = Spouts("t", [Source("s", Notices(said))])
    spouts.plan(Plan(TransactionAttempt(1), ("s",), {}), window_full=False)
    assert spouts.facts.notices == {}
    assert ["[t] Notices.notices of stream 's' raised TypeError"] == [
        message.partition(":")[0] for message in caplog.messages if message.startswith("[t]")
    ]


def test_notices_are_lines_and_not_too_many() -> None:
    """Breaks of lines become spaces; what is too long or too much is cut, and says so."""
    spouts = Spouts("t", [Source("s", Notices(["a\n  b", *"cdefghijkl", "m" * 9999][::-1]))])
    spouts.plan(Plan(TransactionAttempt(1), ("s",), {}), window_full=False)
    (lines,) = spouts.facts.notices.values()
    assert (len(lines), len(lines[0]), lines[-1]) == (11, 2_000, "and 2 more")
    spouts = Spouts("t", [Source("s", Notices(["a\n  b"]))])
    spouts.plan(Plan(TransactionAttempt(1), ("s",), {}), window_full=False)
    assert spouts.facts.notices == {"s": ("a b",)}


def test_notices_are_written_when_they_change_and_only_then(
    spark: SparkSession, warehouse: Path
) -> None:
    """With the txid that was being planned; a run that has nothing to say writes nothing."""
    said = (["one"], ["one"], [], ["two"])
    for name, spout in (
        ("loud", Notices(*said)),
        ("mute", MemoryTransactionalSpout(ROWS, "k string")),
    ):
        topology = Topology(f"{warehouse.parent.name}-{name}")
        topology.stream("s", spout).partition_persist(AppendTable(warehouse / name))
        store = Keeps(topology.name)
        topology.start(spark, until="caught_up", store=store).await_termination()
        expected = [(1, {"s": ["one"]}), (3, {}), (4, {"s": ["two"]})] if name == "loud" else []
        assert [(r.txid, r.streams) for r in store.records] == expected
        assert all(r.epoch == store.epoch and r.at.endswith("+00:00") for r in store.records)


def test_a_status_has_what_a_spout_of_files_notices(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    """No folder, then rows that were added to a file; nothing of an earlier run that is over."""
    nodes, folder = MemoryNodes(), tmp_path / "in"

    def noticed() -> Any:
        topology = Topology("files")
        spout = FileSpout(f"{folder}/*.csv", format="csv", schema="k string")
        topology.stream("s", spout).partition_persist(AppendTable(warehouse / "t"))
        run_in_memory(topology, spark, nodes)
        found = nodes.status("files").notices
        return found and (found.txid, found.streams)

    txid, streams = noticed()
    assert (txid, f"the folder {folder}/ is not there" in streams["s"][0]) == (1, True)
    folder.mkdir()
    (folder / "a.csv").write_text("x\n")
    assert noticed() is None
    (folder / "a.csv").write_text("x\ny\n")
    os.utime(folder / "a.csv", (2**32, 2**32))
    txid, streams = noticed()
    assert (txid, f"reads no file twice: {folder}/a.csv. Rows" in streams["s"][0]) == (2, True)


def test_notices_that_have_no_room_are_counted() -> None:
    """All of them fit into one node, however many streams and however odd the letters."""
    said = {f"s{n}": ("\N{GRINNING FACE}" * 2_000,) * 10 for n in range(3)}
    record = notices_record(1, 1, "now", said)
    assert (sorted(record.streams), record.left_out) == (["s0"], 2)
    assert len(encode(record, "notices")) < NODE_LIMIT


@pytest.mark.parametrize(
    ("names", "asked", "read"),
    [
        (2, [{}], ["names"]),
        (0, [{}], ["facts"]),
        (1, [{}, {"names": {"index": 0}}], ["names", "facts"]),
        (2, [{"facts": {"txid": 1, "attempt_id": 0}}], ["names facts"]),
        (0, [("facts",)], [""]),
    ],
    ids=["busy", "nothing left", "read first", "once only", "a replay that cannot know"],
)
@pytest.mark.parametrize("between", [False, True], ids=["directly", "through another"])
def test_a_stream_is_asked_once_nothing_is_left_of_those_before_it(
    names: int, asked: list[Any], read: list[str], between: bool
) -> None:
    """Until its first record is planned; while it waits, its notices say for whom."""
    first = Source("names", MemoryTransactionalSpout([[("a",)]] * names, "k string"))
    chain = (first,)
    if between:
        chain = (Source("more", MemoryTransactionalSpout([], "k string"), chain),)
    opaque = MemoryOpaqueSpout(lambda *_: [("x",)], "k string")
    spouts = Spouts("t", list(dict.fromkeys((first, *chain, Source("facts", opaque, chain)))))
    everything = tuple(source.name for source in spouts.sources)
    found = []
    for txid, known in enumerate(asked, 1):
        is_new = isinstance(known, dict)
        order = Plan(
            TransactionAttempt(txid),
            everything if is_new else known,
            known if is_new else {},
            is_new=is_new,
        )
        answers = spouts.plan(order, window_full=False)
        found.append(" ".join(name for name, answer in answers.items() if answer is not None))
        held = "facts" in spouts.facts.notices
        assert held is (answers["facts"] is None)
    assert found == read
