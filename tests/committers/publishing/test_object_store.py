"""The commit turn on a real S3 server: its requests, its round trips, and what may become of them.

A proxy before the server counts and does harm. Row for row, the table is what the publications
that did not fail have brought.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

import committers.publishing.log
from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.publishing.checkpoints import Checkpoints
from committers.publishing.log import DeltaLog
from committers.publishing.spec import TableSpec
from committers.staging.parquet_stats import delta_stats
from committers.state_table import StateTable
from committers.verifying.chain import CHAIN
from tests.stores import azure, gcs
from tests.stores.azure import AzureServer
from tests.stores.gcs import GcsServer
from tests.stores.proxy import (
    Entry,
    Fail,
    Fault,
    HideNew,
    Late,
    LoseAnswer,
    Proxy,
    Request,
    Reset,
    Together,
    lists,
)
from tests.stores.s3 import S3Server, storage_options
from tests.stores.versity import VersityServer
from txn.delta.commits import commit_path
from txn.errors import (
    CommitConflictError,
    FencedError,
    StorageUnavailableError,
    TableChangedError,
)
from txn.interfaces import Semantics, StagedFile
from txn.storage.retrying import RetryLimits, retried
from txn.storage.storage import Storage

COLUMNS = (("id", "long"), ("txid", "long"))
SPEC = TableSpec("tests", "append", Semantics.OPAQUE, COLUMNS)
STORES: dict[str, tuple[type[Any], str, Callable[[str], Mapping[str, str]]]] = {
    "s3": (S3Server, "s3", storage_options),
    "azure": (AzureServer, "az", azure.storage_options),
    "gcs": (GcsServer, "gs", gcs.storage_options),
    "versity": (VersityServer, "s3", storage_options),
}
"""Name -> its server, the scheme of its locations, and how it is reached."""
ROUND_TRIPS = (3, 1, 1)
"""How many requests each round trip has, of a commit turn that nobody disturbs, with one file."""
BUDGET = sum(ROUND_TRIPS)


class Table:
    """A table in a bucket, behind a proxy.

    Args:
        options: `storage_options` of a server or proxy, by its address.
    """

    def __init__(
        self, place: str, server: Any, proxy: Proxy, options: Callable[[str], Mapping[str, str]]
    ) -> None:
        self.uri = f"{place}/warehouse/rows"
        self.proxy = proxy
        self.storage = Storage(self.uri, options(proxy.url))
        self.direct = Storage(self.uri, options(server.url))
        """The same table, by a way on which nothing happens and nobody counts."""

    def open(self, epoch: int = 1) -> DeltaLog:
        """A leader's log: opened and fenced."""
        log = DeltaLog(self.storage)
        log.open(SPEC, epoch)
        log.fence(epoch)
        self.proxy.forget()
        return log

    def put(self, txid: int, attempt: int = 0, count: int = 3) -> StagedFile:
        """A staged file of `count` rows: ids from 1000 * txid + 100 * attempt on."""
        first = 1000 * txid + 100 * attempt
        ids = list(range(first, first + count))
        sink = pa.BufferOutputStream()
        parquet.write_table(
            pa.table({"id": ids, "txid": pa.array([txid] * count, pa.int64())}), sink
        )
        data = sink.getvalue()
        stats = delta_stats(parquet.read_metadata(pa.BufferReader(data)))
        path = f"data/{txid}-{attempt}-aa/part 0.parquet"
        self.direct.write(path, data.to_pybytes())
        return StagedFile(path, data.size, count, {}, stats)

    def rows(self) -> list[tuple[int, int]]:
        """(id, txid) of all rows, as another reader finds them."""
        found = DeltaTable(self.uri, storage_options=self.direct.options).to_pyarrow_table()
        return sorted(zip(*(found[name].to_pylist() for name in ("id", "txid")), strict=True))

    def on_commit(self, version: int) -> Any:
        """Whether a request is the conditional PUT of this version."""
        return lambda request: (
            request.operation == "PUT IF ABSENT" and request.key.endswith(commit_path(version))
        )


def expected(*published: tuple[int, int]) -> list[tuple[int, int]]:
    """The rows of these (txid, attempt), as `Table.put` makes them."""
    return sorted((1000 * t + 100 * a + n, t) for t, a in published for n in range(3))


@pytest.fixture(scope="module")
def servers(
    s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Any]]:
    """A server by its name in `STORES`, started when it is asked for."""
    with ExitStack() as running:
        found: dict[str, Any] = {"s3": s3}

        def server(name: str) -> Any:
            if name not in found:
                found[name] = running.enter_context(STORES[name][0](tmp_path_factory.mktemp(name)))
            return found[name]

        yield server


@pytest.fixture(params=STORES)
def table(servers: Callable[[str], Any], request: pytest.FixtureRequest) -> Iterator[Table]:
    _, scheme, options = STORES[request.param]
    server = servers(request.param)
    bucket = server.bucket(request.node.originalname)
    with Proxy(server.url) as proxy:
        yield Table(f"{scheme}://{bucket}", server, proxy, options)


def operations(entries: Sequence[Entry]) -> Counter[str]:
    return Counter(entry.operation for entry in entries)


# --- the budget ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["append", "log"])
def test_a_commit_turn_is_three_round_trips(
    s3: S3Server, driver: Any, request: pytest.FixtureRequest, kind: str
) -> None:
    """What `prepare` and `publish` ask of the store, for one file: looks side by side, one
    conditional PUT, one read.
    """
    bucket = s3.bucket(request.node.name)
    with Proxy(s3.url) as proxy:
        options = storage_options(proxy.url)
        place = f"s3://{bucket}/{kind}"
        committer: Any = AppendTable(place, storage_options=options)
        if kind == "log":
            state = StateTable(place, layout="log", storage_options=options)
            committer = state.bind(["k"], {"n": Count()})
        driver.open(committer, "k string")
        for txid in (1, 2):
            staged = driver.stage(committer, driver.frame([("a",)], "k string").coalesce(1), txid)
            assert len(staged.files) == 1
            proxy.forget()
            trips = Together(ROUND_TRIPS)
            proxy.inject(trips)
            driver.turn(committer, staged)
            proxy.clear()
            assert {entry.client for entry in proxy.log} == {"obstore"}
            assert operations(proxy.log) == {"GET": 3, "HEAD": 1, "PUT IF ABSENT": 1}
            assert (trips.alone, trips.early) == ([], [])


def test_a_checkpoint_is_made_aside_from_the_turns(table: Table, make_publication: Any) -> None:
    """No turn pays for it, and a fresh process loads the same files from it."""
    log = table.open()
    care = Checkpoints(table.direct, log.verify)
    for txid in range(1, 31):
        file = table.put(txid)
        table.proxy.forget()
        log.publish([file], [], make_publication(txid), log.version)
        assert len(table.proxy.log) == BUDGET
        care.run(log.version, log.properties)
    log_files = table.direct.files("_delta_log")
    assert [path for path, _ in log_files if "checkpoint" in path] == [
        f"_delta_log/{24:020d}.checkpoint.parquet"
    ]
    assert table.open(2).files == log.files
    assert table.rows() == expected(*((txid, 0) for txid in range(1, 31)))


def test_a_table_is_made_by_one_conditional_put(table: Table) -> None:
    """A new table, from the first look to its leader's: nothing is asked twice in vain."""
    log = DeltaLog(table.storage)
    log.open(SPEC, 1)
    assert log.fence(1) is False
    puts = [one for one in table.proxy.log if one.operation.startswith("PUT")]
    assert [(one.client, one.kind) for one in puts] == [("obstore", "commit")]
    if table.storage.uri.startswith("s3:"):
        assert len(table.proxy.log) <= 19, operations(table.proxy.log)
    assert table.rows() == []


@pytest.mark.parametrize("fault", [LoseAnswer(), LoseAnswer(500)], ids=["cut", "500"])
def test_the_answer_of_a_creation_is_lost(
    table: Table, make_publication: Any, fault: Fault
) -> None:
    """The table is there all the same, and is led from then on."""
    rule = table.proxy.inject(fault, table.on_commit(0))
    log = table.open()
    log.publish([table.put(1)], [], make_publication(1), log.version)
    assert len(rule.met) == 1
    assert table.rows() == expected((1, 0))


@pytest.mark.parametrize("fault", [Fail(503), Late(0.3)], ids=["refused", "late"])
def test_a_creation_that_failed_is_tried_again(
    table: Table, make_publication: Any, fault: Fault
) -> None:
    """The table is made, whichever request is the first to land."""
    rule = table.proxy.inject(fault, table.on_commit(0), nth=1)
    log = table.open()
    table.proxy.settle()
    log.publish([table.put(1)], [], make_publication(1), log.version)
    assert len(rule.met) == 1
    assert table.rows() == expected((1, 0))


# --- what may become of the conditional PUT --------------------------------------------------


def test_the_answer_of_the_commit_is_lost(table: Table, make_publication: Any) -> None:
    """It has landed: the log shows the token, and nothing is done twice."""
    log = table.open()
    rule = table.proxy.inject(LoseAnswer(), table.on_commit(1))
    table.proxy.inject(LoseAnswer(500), table.on_commit(2))
    for txid in (1, 2):
        published = log.publish([table.put(txid)], [], make_publication(txid), log.version)
        assert published.version == txid
    assert len(rule.met) == 1
    assert table.rows() == expected((1, 0), (2, 0))


@pytest.mark.parametrize("fault", [Fail(503), Reset(), Late(0.3)], ids=["refused", "cut", "late"])
def test_the_commit_fails_for_a_moment(table: Table, make_publication: Any, fault: Fault) -> None:
    """The same commit is sent again in the same turn; it lands once, whichever is the first."""
    log = table.open()
    rule = table.proxy.inject(fault, table.on_commit(1), nth=(1, 2))
    published = log.publish([table.put(1)], [], make_publication(1), log.version)
    table.proxy.settle()
    sent = {request.body for request in rule.met}
    assert (published.version, len(rule.met), len(sent)) == (1, 2, 1)
    log.publish([table.put(2)], [], make_publication(2), log.version)
    assert table.rows() == expected((1, 0), (2, 0))


def test_storage_stays_away(
    table: Table, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch waits, uncounted, and its replay lands once."""
    log = table.open()
    rule = table.proxy.inject(Fail(503, "SlowDown"), table.on_commit(1))
    with monkeypatch.context() as patch:
        patch.setattr(committers.publishing.log, "retried", _hardly_patient)
        with pytest.raises(StorageUnavailableError, match="could not append version 1 to table"):
            log.publish([table.put(1)], [], make_publication(1), log.version)
    assert len(rule.met) > 1
    table.proxy.clear()
    log.publish([table.put(1, 1)], [], make_publication(1, attempt=1), log.version)
    assert table.rows() == expected((1, 1))


def _hardly_patient(operation: Callable[[], Any], what: str) -> Any:
    return retried(operation, what, RetryLimits(deadline_secs=0.2))


@pytest.mark.parametrize("status", [409, 412])
def test_a_repeated_commit_that_is_refused_has_landed(
    table: Table, make_publication: Any, status: int
) -> None:
    """Something on the way repeats the PUT; the answer is that of the second one."""
    log = table.open()
    code = {409: "ConditionalRequestConflict", 412: "PreconditionFailed"}[status]
    twice = table.proxy.inject(_Answered(status, code), table.on_commit(1))
    published = log.publish([table.put(1)], [], make_publication(1), log.version)
    assert (published.version, len(twice.met)) == (1, 1)
    assert table.rows() == expected((1, 0))


class _Answered(Fail):
    """The server did it, and the client gets this error."""

    async def __call__(self, proxy: Proxy, request: Request, forward: Any) -> Any:
        await forward(request)
        return await super().__call__(proxy, request, forward)


def test_a_commit_that_lands_after_its_attempt_has_failed(
    table: Table, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay finds it in its place, and the next one replaces it as a whole."""
    log = table.open()
    table.proxy.inject(Late(0.5), table.on_commit(1))
    with monkeypatch.context() as patch:
        patch.setattr(committers.publishing.log, "retried", _hardly_patient)
        with pytest.raises(StorageUnavailableError):
            log.publish([table.put(1)], [], make_publication(1), log.version)
    table.proxy.clear()
    table.proxy.settle()
    with pytest.raises(CommitConflictError, match="published meanwhile by epoch 1 as 1:0"):
        log.publish([table.put(1, 1)], [], make_publication(1, attempt=1), log.version)
    removes = list(log.files.values())
    log.publish([table.put(1, 2)], removes, make_publication(1, attempt=2), log.version)
    assert table.rows() == expected((1, 2))


@pytest.mark.parametrize(
    "fault", [Fail(503), LoseAnswer(500), Late(0.3)], ids=["refused", "lost", "late"]
)
def test_storage_is_away_for_a_moment_while_a_leader_fences(
    table: Table, make_publication: Any, fault: Fault
) -> None:
    """It is asked again, and the table is fenced, whether or not the first try lands."""
    log = table.open()
    log.publish([table.put(1)], [], make_publication(1), log.version)
    rule = table.proxy.inject(fault, table.on_commit(2), nth=1)
    successor = DeltaLog(table.storage)
    assert successor.attach("tests")
    successor.fence(2)
    table.proxy.settle()
    assert len(rule.met) == 1
    with pytest.raises(FencedError, match="epoch 2"):
        log.publish([table.put(2)], [], make_publication(2), log.version)
    again = make_publication(2, epoch=2)
    successor.publish([table.put(2, 1)], [], again, successor.version)
    assert table.rows() == expected((1, 0), (2, 1))


def test_another_writer_wins(table: Table, make_publication: Any) -> None:
    """Over a harmless commit the next version is taken; a newer leader's ends it."""
    log = table.open()
    assert table.direct.put_if_absent(commit_path(1), b'{"commitInfo":{"operation":"OPTIMIZE"}}\n')
    published = log.publish([table.put(1)], [], make_publication(1), log.version)
    assert published.version == 2
    other = DeltaLog(table.direct)
    assert other.attach("tests")
    other.fence(2)
    with pytest.raises(FencedError, match="epoch 2"):
        log.publish([table.put(2)], [], make_publication(2), log.version)
    assert table.rows() == expected((1, 0))


def test_a_listing_that_lags_while_a_leader_opens(table: Table, make_publication: Any) -> None:
    """A table that a listing does not show yet is loaded when it does, at its newest version."""
    log = table.open()
    log.publish([table.put(1)], [], make_publication(1), log.version)
    table.proxy.inject(HideNew(1.0), lists())
    successor = DeltaLog(table.storage)
    assert successor.attach("tests")
    successor.fence(2)
    published = successor.publish(
        [table.put(2)], [], make_publication(2, epoch=2), successor.version
    )
    assert published.version == log.version + 2
    assert table.rows() == expected((1, 0), (2, 0))


# --- a version that was overwritten ----------------------------------------------------------


@pytest.mark.parametrize("table", ["s3", "versity"], indirect=True)
@pytest.mark.parametrize("version", [1, 3])
def test_a_version_that_spark_overwrote_is_found(
    table: Table, make_publication: Any, version: int
) -> None:
    """The newest one at the next look, an older one at the next start or before a checkpoint;
    and never again is anything written on top of it.
    """
    log = table.open()
    for txid in (1, 2, 3):
        log.publish([table.put(txid)], [], make_publication(txid), log.version)
    table.direct.write(commit_path(version), b'{"commitInfo":{"operation":"OPTIMIZE"}}\n')
    message = f"Version {version} .* was overwritten"
    if version == 3:
        with pytest.raises(TableChangedError, match=message) as raised:
            log.publish([table.put(4)], [], make_publication(4), log.version)
        assert raised.value.number == "TXN-316"
        return
    with pytest.raises(TableChangedError, match=message):
        table.open(2)
    with pytest.raises(TableChangedError, match=message):
        Checkpoints(table.direct, log.verify).run(CHAIN, log.properties)
    with pytest.raises(TableChangedError, match=message):
        log.publish([table.put(4)], [], make_publication(4), log.version)
    DeltaTable(table.uri, storage_options=table.direct.options).alter.set_table_properties(
        {"txn.accepted_version": "1"}, raise_if_not_exists=False
    )
    table.open(2)
    assert table.rows() == expected((2, 0), (3, 0))
