"""The checker finds nothing in a run that went well, and everything in one that did not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import RULES, check
from tests.chaos.figures import figures
from tests.chaos.history import Event, History, read_history
from tests.chaos.records import Totals, key_of, value_of
from tests.chaos.report import MARKS, markdown, pasted
from tests.chaos.small_history import small_history, totals_of

Spoil = Callable[[list[Event]], Any]


def some(events: list[Event], kind: str, **fields: Any) -> list[Event]:
    """The events of a kind with these fields."""
    return [
        event
        for event in events
        if event["kind"] == kind and all(event.get(name) == v for name, v in fields.items())
    ]


def publication(events: list[Event], table: str, nth: int) -> Event:
    """The n-th version of a table that publishes something."""
    return [v for v in some(events, "version", table=table) if v["publication"]][nth]


def rows(events: list[Event], table: str, txid: int) -> list[Any]:
    """The rows of a txid in the end."""
    return some(events, "rows", table=table, txid=txid)[0]["rows"]


def renumber(events: list[Event], table: str) -> None:
    """The versions as they stand get their numbers anew; the reader was not there."""
    for number, version in enumerate(some(events, "version", table=table)):
        version["version"] = number


def again(events: list[Event], table: str, nth: int, epoch: int, **change: Any) -> None:
    """One more publication of the txids of the n-th, at the end of the log, with this epoch."""
    version = json.loads(json.dumps(publication(events, table, nth)))
    version["epoch"] = epoch
    version["publication"].update(change)
    events.append(version)
    renumber(events, table)


def unwritten(at: float) -> list[Event]:
    """A driver that could not write, and a disk that was full from 50 to 60."""
    end = {"kind": "driver", "what": "end", "life": 9, "code": 3, "error": "AppendFailedError"}
    full = {"kind": "fault", "fault": "disk_full", "at": 50.0, "until": 60.0}
    return [{**end, "message": "", "at": at}, full]


def failed(
    message: str,
    *,
    error: str = "BatchError",
    fault: str | None = None,
    at: float = 60.0,
    life: int = 9,
) -> list[Event]:
    """A driver that ended with an error, and perhaps a fault from 50 to 59."""
    end = {"kind": "driver", "what": "end", "life": life, "code": 3, "error": error}
    events = [{**end, "message": message, "at": at}]
    if life == 9:
        began = {"kind": "driver", "what": "start", "life": life, "at": min(40.0, at)}
        events.append(began)
    if fault is not None:
        events.append({"kind": "fault", "fault": fault, "at": 50.0, "until": 59.0})
    return events


SPOILT: dict[str, tuple[str, Spoil]] = {
    # What was spoilt -> the rule that tells it, or the beginning of what it says; how.
    # --- rows in the end ---
    "a row is missing": ("lost", lambda e: rows(e, "kafka_rows", 1).pop()),
    "a row is there twice": (
        "doubled",
        lambda e: rows(e, "kafka_rows", 1).append(rows(e, "kafka_rows", 1)[0]),
    ),
    "a record is in two txids": (
        "doubled",
        lambda e: rows(e, "kafka_rows", 3).append(rows(e, "kafka_rows", 1)[0]),
    ),
    "a record that nobody fed": (
        "altered",
        lambda e: rows(e, "files_rows", 4).append([999, key_of(999), value_of(999)]),
    ),
    "a row has another value": (
        "altered",
        lambda e: rows(e, "files_rows", 1)[0].__setitem__(2, 12345),
    ),
    "a row has another txid": (
        "altered",
        lambda e: rows(e, "kafka_rows", 4).append(rows(e, "kafka_rows", 3).pop()),
    ),
    "a key counts one record twice": (
        "totals",
        lambda e: some(e, "state", table="kafka_totals")[0]["rows"][0].__setitem__(1, 9),
    ),
    "a key is missing": (
        "totals",
        lambda e: some(e, "state", table="files_totals")[0]["rows"].pop(),
    ),
    "a key that a dead attempt brought stayed": (
        "totals",
        lambda e: some(e, "state", table="kafka_totals")[0]["rows"].append(["kx", 1, 1, 1]),
    ),
    "a key has two rows": (
        "totals",
        lambda e: (
            s := some(e, "state", table="files_totals")[0]["rows"],
            s.append(s[0]),
        ),
    ),
    # --- what txids read ---
    "input that no txid read": (
        "lost",
        lambda e: some(e, "input", part="records-1")[0].update(count=21),
    ),
    "two txids read the same": (
        "doubled",
        lambda e: publication(e, "kafka_rows", 3)["publication"]["members"][1]["reads"][
            "kafka"
        ].append(["records-0", 0, 1]),
    ),
    "a txid read what was never there": (
        "altered: txid 1 read what the input never had",
        lambda e: publication(e, "kafka_rows", 0)["publication"]["members"][0]["reads"][
            "kafka"
        ].append(["records-7", 0, 1]),
    ),
    "two tables read a txid differently": (
        "together",
        lambda e: publication(e, "kafka_totals", 3)["publication"]["members"][0]["reads"].update(
            kafka=[["records-0", 9, 19]]
        ),
    ),
    # --- order and fencing ---
    "a txid comes again without a newer attempt": (
        "order",
        lambda e: (
            publication(e, "kafka_rows", 2)["publication"]["members"][0].update(attempt=0)
            or publication(e, "kafka_rows", 2).update(epoch=1)
        ),
    ),
    "a committed txid comes again": (
        "order: txid 2 is published again, and 2 was committed",
        lambda e: again(e, "kafka_rows", 1, epoch=3),
    ),
    "an older txid follows in a table that never takes back": (
        "order: txid 3 is published after txid 4",
        lambda e: again(
            e,
            "files_rows",
            2,
            epoch=4,
            last=3,
            members=publication(e, "files_rows", 2)["publication"]["members"][:1],
        ),
    ),
    "a txid is left out": (
        "order",
        lambda e: [
            publication(e, "files_totals", 2)["publication"].update(first=4, last=5),
            *(
                member.update(txid=member["txid"] + 1)
                for member in publication(e, "files_totals", 2)["publication"]["members"]
            ),
        ],
    ),
    "a group that is not what it says": (
        "order",
        lambda e: publication(e, "files_rows", 2)["publication"].update(last=5),
    ),
    "a transactional replay that differs": (
        "order",
        lambda e: (
            again(e, "files_rows", 2, epoch=4)
            or publication(e, "files_rows", 3)["publication"]["members"][1]["reads"].update(
                files=[]
            )
        ),
    ),
    "a fenced leader publishes": (
        "fenced",
        lambda e: publication(e, "files_totals", 2).update(epoch=2),
    ),
    "two leaders have one epoch": (
        "fenced",
        lambda e: some(e, "driver", what="leading", life=3)[0].update(epoch=2),
    ),
    # --- the reader ---
    "the reader saw a part of a txid": (
        "partial",
        lambda e: some(e, "read", table="kafka_rows")[0]["txids"]["1"].__setitem__(0, 9),
    ),
    "the reader saw a txid too early": (
        "partial",
        lambda e: some(e, "read", table="files_rows")[0]["txids"].update({"2": [5, 45, 415]}),
    ),
    "the reader saw a dead attempt's rows": (
        "partial",
        lambda e: some(e, "read", table="kafka_rows")[3]["txids"].pop("2"),
    ),
    "the reader saw totals between two txids": (
        "partial",
        lambda e: some(e, "read", table="kafka_totals")[1].update(n=12),
    ),
    "the reader saw one wrong key": (
        "partial",
        lambda e: some(e, "read", table="kafka_totals")[1].update(digest=1),
    ),
    "totals go back": (
        "back: 12 records were read before, and 9 now",
        lambda e: some(e, "read", table="files_totals")[4].update(n=9),
    ),
    "committed totals go back where a replay may take something back": (
        "back: 10 committed records were read before, and 5 records now",
        lambda e: some(e, "read", table="kafka_totals")[3].update(n=5),
    ),
    "versions go back": (
        "back",
        lambda e: e.append(some(e, "read", table="files_totals")[0]),
    ),
    "rows of a committed txid go away": (
        "back",
        lambda e: some(e, "read", table="kafka_rows")[4]["txids"].update({"1": None}),
    ),
    "a committed txid cannot be read yet": (
        "back",
        lambda e: some(e, "read", table="files_totals")[1].update(committed=2),
    ),
    "the reader saw a version that is gone": (
        "back",
        lambda e: some(e, "read", table="files_totals")[4].update(version=99),
    ),
    # --- ZooKeeper and drivers ---
    "ZooKeeper is behind the tables": (
        "zookeeper",
        lambda e: some(e, "zookeeper")[0].update(committed=3),
    ),
    "ZooKeeper has an older epoch": (
        "zookeeper",
        lambda e: some(e, "zookeeper")[0].update(epoch=2),
    ),
    "a batch is still open": ("zookeeper", lambda e: some(e, "zookeeper")[0].update(open=[5])),
    "a batch was set aside": ("lost", lambda e: some(e, "zookeeper")[0].update(quarantined=[2])),
    "a zombie went on": (
        "driver",
        lambda e: e.remove(some(e, "driver", life=2, what="end")[0]),
    ),
    "a zombie ended well": (
        "driver",
        lambda e: some(e, "driver", life=2, what="end")[0].update(code=0, error=None),
    ),
    "a driver refused the tables": (
        "driver",
        lambda e: e.append(
            {"kind": "driver", "what": "end", "life": 9, "code": 3, "error": "RecoveryRefusedError"}
            | {"message": "", "at": 9.0}
        ),
    ),
    "a batch failed for good, and nothing was done to the run": (
        "driver: ended with code 3, BatchError",
        lambda e: e.extend(failed("FetchFailed: an executor was lost")),
    ),
    "a batch failed for good for another reason than what was done": (
        "driver: ended with code 3, BatchError",
        lambda e: e.extend(failed("DIVIDE_BY_ZERO", fault="executor_kill")),
    ),
    "a batch failed for good long after what was done": (
        "driver: ended with code 3, BatchError",
        lambda e: e.extend(failed("lost an executor", fault="executor_kill", at=900.0)),
    ),
    "a driver waited for a leader that never was": (
        "driver: ended with code 3, LeaderExistsError",
        lambda e: e.extend(failed("", error="LeaderExistsError", at=0.5)),
    ),
    "a driver was fenced by nobody": (
        "driver: ended with code 3, FencedError",
        lambda e: (
            some(e, "driver", life=3, what="leading")[0]
            and e.append(failed("", error="FencedError", life=3)[0])
        ),
    ),
    "a driver lost a ZooKeeper that was there": (
        "driver: ended with code 3, ProgressUnavailableError",
        lambda e: e.extend(failed("", error="ProgressUnavailableError", fault="broker_kill")),
    ),
    "a driver that had run before found no brokers, which were there": (
        "driver: ended with code 3, SourceUnavailableError",
        lambda e: e.extend(failed("Kafka: Timed out", error="SourceUnavailableError")),
    ),
    # --- below joins, queries and new values ---
    "a left row without a match is missing": (
        "derived",
        lambda e: rows(e, "joined", 4).pop(),
    ),
    "a join met another txid's rows": (
        "derived",
        lambda e: rows(e, "joined", 1)[0].__setitem__(1, 7),
    ),
    "a query as of txid - 1 saw its own txid": (
        "derived",
        lambda e: rows(e, "queried", 1)[0].__setitem__(1, 1),
    ),
    "a query saw two txids at once": (
        "derived",
        lambda e: rows(e, "seen", 3)[0].__setitem__(1, 9),
    ),
    "a change is told twice": (
        "derived",
        lambda e: rows(e, "changes", 4).append(rows(e, "changes", 4)[0]),
    ),
    "a change has another value before": (
        "derived",
        lambda e: rows(e, "changes", 4)[0].__setitem__(1, 4096 + 3),
    ),
    "the reader saw other matches than its version has": (
        "partial",
        lambda e: some(e, "read", table="joined")[0]["txids"]["1"].__setitem__(3, 99),
    ),
    "a driver could not write though there was room": (
        "driver",
        lambda e: e.extend(unwritten(at=100.0)),
    ),
    # --- the history ---
    "the run did not end": ("history", lambda e: e.remove(some(e, "end")[0])),
    "a version is missing": (
        "history",
        lambda e: e.remove(some(e, "version", table="kafka_rows", version=2)[0]),
    ),
    "no input was recorded": (
        "history",
        lambda e: [e.remove(event) for event in some(e, "input", stream="files")],
    ),
    "the reader slept": (
        "history",
        lambda e: [e.remove(event) for event in some(e, "read", table="kafka_rows")],
    ),
    "a state table was not read in the end": (
        "history",
        lambda e: e.remove(some(e, "state", table="kafka_totals")[0]),
    ),
    "ZooKeeper was not asked in the end": ("history", lambda e: e.remove(some(e, "zookeeper")[0])),
    "nothing was run": (
        "history: it names no table",
        lambda e: e.__setitem__(slice(None), some(e, "zookeeper") + some(e, "end")),
    ),
}


def test_a_good_run_has_no_violation() -> None:
    """A run with a replay that differs, a zombie and a group, all as it should be, is clean."""
    assert check(small_history()) == []


def test_a_driver_that_starts_on_a_full_disk_may_say_so() -> None:
    """A driver that ends because it could not write is no violation while the disk is full."""
    assert check(small_history() + unwritten(at=61.0)) == []


def test_a_batch_that_fails_by_what_was_done_is_no_violation() -> None:
    """An end that the schedule is the cause of is no violation, if the message says so."""
    explained = [
        failed("ExecutorLostFailure", fault="executor_kill", at=70.0),
        failed("No space left on device", fault="disk_full"),
        failed("org.apache.kafka.common.errors.TimeoutException", fault="broker_kill"),
        failed("", error="ProgressUnavailableError", fault="zookeeper_majority"),
        failed("Kafka: Timed out", error="SourceUnavailableError", fault="broker_kill"),
    ]
    for events in explained:
        assert check(small_history() + events) == []


def test_the_very_first_run_may_end_for_want_of_brokers() -> None:
    """Before anything is published a driver may find no brokers, whatever was done to them."""
    events = small_history()
    before: list[Event] = [
        {"kind": "driver", "life": 8, "what": "start", "at": 0.1},
        *failed("Kafka: Timed out", error="SourceUnavailableError", life=8, at=0.2),
    ]
    assert check(before + events) == []


@pytest.mark.parametrize("name", SPOILT)
def test_each_kind_of_violation_is_found(name: str) -> None:
    """A history that was spoilt in one place is told by the rule that is meant for it."""
    rule, spoil = SPOILT[name]
    events = small_history()
    spoil(events)
    found = [f"{violation.rule}: {violation.what}" for violation in check(events)]
    assert [words for words in found if words.startswith(rule)] != [], found


def test_every_rule_can_fail() -> None:
    """There is no rule that no spoilt history breaks."""
    assert set(RULES) == {rule.partition(":")[0] for rule, _ in SPOILT.values()}


def test_the_oracle_takes_back_what_it_added() -> None:
    """Totals after a restore are those of before, key by key, and in all sums."""
    totals, twin = Totals(), Totals()
    totals.add(range(3000))
    twin.add(range(3000))
    totals.restore(totals.add(range(2000, 7000)))
    assert totals.rows == twin.rows
    assert (totals.n, totals.total, totals.digest) == (twin.n, twin.total, twin.digest)


def test_the_oracle_equals_grouping_by_hand() -> None:
    """Totals by key are those of a plain grouping of all values."""
    numbers = [*range(0, 5000, 3), *range(100)]
    totals = Totals()
    totals.add(numbers[:700])
    totals.add(numbers[700:])
    assert [[key, *row] for key, row in sorted(totals.rows.items())] == totals_of(numbers)


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Events come back one by one; a line that a crash cut off is left out."""
    history = History(tmp_path / "history.jsonl")
    for event in small_history():
        history.write(event)
    history.close()
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"kind": "en')
    assert list(read_history(tmp_path / "history.jsonl")) == small_history()


def test_figures_are_those_of_the_history() -> None:
    """Records, transactions, replays, takeovers and gaps are counted from the history alone."""
    events = small_history()
    events[0] |= {"session_secs": 4.0}
    for event in some(events, "driver", what="leading"):
        event["at"] = 1000.0 * event["life"]
    for life, fault in enumerate(some(events, "fault"), 1):
        fault["at"] = 1000.0 * life + 750.0
    publication(events, "files_rows", 2)["at"] = 500.0
    before = publication(events, "queried", 1)["at"]
    found = figures(events)
    assert found["records"] == {"kafka": 40, "files": 30}
    assert (found["transactions"], found["replayed_publications"]) == (4, 3)
    assert found["faults"] == {"driver_kill": 1, "zombie": 1}
    takeovers = found["takeover_to_leadership"]
    assert (takeovers["count"], takeovers["max"]) == (2, 250.0)
    assert found["unavailable"]["longest"] == 500.0 - before


def test_a_report_says_how_many_of_each_and_goes_between_the_marks() -> None:
    """Violations are counted by rule in the report, which replaces what stood between the marks."""
    events = small_history()
    machine = {"cores": 2, "cpu": "c", "memory_gb": 1, "system": "s", "python": "3", "java": "17"}
    events[0] |= {"session_secs": 4.0, "machine": machine | {"packages": {}, "commit": "c0ffee"}}
    some(events, "state", table="kafka_totals")[0]["rows"][0][1] = 9
    events.append({"kind": "missing", "fault": "disk_full", "why": "mount: not permitted"})
    text = markdown(figures(events), check(events))
    assert "| a state table's row is not what the input gives | **1** |" in text
    assert "not available: mount: not permitted" in text
    begin, end = MARKS["local"]
    document = f"# Title\n\n{begin}\nwhat stood here\n{end}\n\nThe end.\n"
    once = pasted(document, text)
    assert once.startswith(f"# Title\n\n{begin}\n\n    ")  # the command, as code
    assert once.endswith("\n\nThe end.\n")
    assert "what stood here" not in once
    assert pasted(once, text) == once
    with pytest.raises(ValueError, match="needs each of these lines once"):
        pasted("# Title\n", text)
