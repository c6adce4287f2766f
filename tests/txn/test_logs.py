"""Log records know the batch that their thread works on, and are written as JSON."""

from __future__ import annotations

import json
import logging
import logging.handlers
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from txn.attempts import TransactionAttempt
from txn.engine.base.threads import Pool
from txn.logs import BatchFields, JsonFormatter, Work, fields_of, working_on
from txn.storage.asking import in_parallel

SEVEN, EIGHT = TransactionAttempt(7, 1), TransactionAttempt(8)
WORK = Work("flights", 3, (SEVEN,), "stage", "warehouse/t")
IDS = {
    "topology": "flights",
    "epoch": 3,
    "txid": 7,
    "attempt": 1,
    "station": "stage",
    "table": "warehouse/t",
}


class Lines(logging.Handler):
    """Keeps what is logged, as the formatter writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        self.lines.append(self.format(record))

    @property
    def only(self) -> dict[str, Any]:
        """The one record that was logged."""
        (line,) = self.lines
        assert "\n" not in line
        found = json.loads(line)
        assert isinstance(found, dict)
        return found


@contextmanager
def logged() -> Iterator[tuple[logging.Logger, Lines]]:
    """A user's logger, and what it logs."""
    log, lines = logging.getLogger("tests.txn.test_logs"), Lines()
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    log.propagate = False  # pytest-xdist's workers die of half a character in a captured line
    try:
        yield log, lines
    finally:
        log.propagate = True
        log.removeHandler(lines)


def test_a_record_is_one_json_object() -> None:
    """Time, level, logger and message, and no ids if it is about no batch; text stays text."""
    with logged() as (log, lines):
        log.warning("half \ud800, <b>%s</b>", 'a "line"\nand more', extra={"shard": 3})
    record = lines.only
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "WARNING",
        "logger": "tests.txn.test_logs",
        "message": 'half \ud800, <b>a "line"\nand more</b>',
        "shard": 3,
    }


def test_a_record_has_the_ids_of_what_its_thread_works_on() -> None:
    """Whoever logs it; after the work, none."""
    with logged() as (log, lines), working_on(Work("flights")):
        with working_on(WORK):
            log.info("reads")
        log.info("after")
    first, second = map(json.loads, lines.lines)
    assert first.items() >= IDS.items()
    assert (second["topology"], "txid" in second, "epoch" in second) == ("flights", False, False)


def test_a_group_has_the_ids_of_its_last_and_a_list() -> None:
    """One job or commit turn of several txids."""
    with logged() as (log, lines), working_on(Work("flights", 3, (SEVEN, EIGHT), "turn")):
        log.info("commits")
    found = lines.only
    assert (found["txid"], found["attempt"], found["attempts"]) == (8, 0, ["7:1", "8:0"])


def test_a_record_about_another_attempt_says_so_itself() -> None:
    """Its ids win, and the station of its thread's own work is not claimed for it."""
    with logged() as (log, lines), working_on(WORK):
        log.info("failed", extra=fields_of(EIGHT))
    found = lines.only
    assert (found["txid"], found["attempt"], found["topology"]) == (8, 0, "flights")
    assert not {"station", "table"} & found.keys()


def test_an_error_is_told_whole() -> None:
    """The traceback is a field: a line stays a line."""
    with logged() as (log, lines):
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("boom")
    assert "ValueError: no" in lines.only["exception"]


def test_the_jobs_of_a_pool_have_the_work_of_who_submitted_them() -> None:
    """A pool's thread works for one and then for another."""
    pool = Pool(1, "txn-test")
    with logged() as (log, lines):
        for work in (WORK, Work("other", 4, (EIGHT,))):
            with working_on(work):
                pool.submit(log.info, "works").result(10)
        pool.submit(log.info, "idles").result(10)
    pool.close(cancel=True)
    assert [json.loads(line).get("topology") for line in lines.lines] == ["flights", "other", None]


def test_fields_outlive_a_queue() -> None:
    """Behind a `QueueHandler` another thread formats: `BatchFields` has given them before."""
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    handler.addFilter(BatchFields())
    log = logging.getLogger("tests.txn.test_logs")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with working_on(WORK):
            log.info("reads %s", "files")
    finally:
        log.removeHandler(handler)
    record = records.get(timeout=10)
    found = json.loads(JsonFormatter().format(record))
    assert found.items() >= {**IDS, "message": "reads files"}.items()
    assert logging.Formatter("%(txid)s:%(attempt)s %(station)s").format(record) == "7:1 stage"


def test_threads_that_ask_storage_have_the_work_of_their_caller() -> None:
    """They are of one call, such as looks at several files at once."""
    with logged() as (log, lines), working_on(WORK):
        in_parallel(log.info, ["one", "another"])
    found = [json.loads(line) for line in lines.lines]
    assert sorted(line["message"] for line in found) == ["another", "one"]
    assert all(line.items() >= IDS.items() for line in found)
