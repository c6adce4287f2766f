"""A table that is not a Delta table: operations read the log that its committer keeps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spouts.memory import MemoryTransactionalSpout
from tests.dashboard.made_logs import publication
from txn import Topology
from txn.dashboard.watching.follower import OwnLogFollower
from txn.dashboard.watching.index import Filter, LogIndex
from txn.dashboard.watching.topology_facts import TopologyFacts
from txn.doctor.tables import check_own_log
from txn.errors import UserError
from txn.operations.recover import read_tables
from txn.operations.table_logs import table_log
from txn.operations.tables.table_status import read_tables as read_status
from txn.operations.tables.topology_tables import TopologyTables
from txn.operations.txids import history
from txn.testing import RecordingCommitter, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def topology_into(folder: Path) -> Topology:
    """A topology with two batches and one table that is not a Delta table."""
    topology = Topology("own-log")
    stream = topology.stream(
        "s", MemoryTransactionalSpout([[("a", 1)], [("b", 2)]], "k string, v int")
    )
    stream.partition_persist(RecordingCommitter(folder))
    return topology


def test_operations_see_what_such_a_table_holds(spark: SparkSession, warehouse: Path) -> None:
    """History, status, recovery and doctor read its log; OPTIMIZE and VACUUM leave it alone."""
    table = str(warehouse / "rows")
    run_in_memory(topology_into(warehouse / "rows"), spark)
    topology = topology_into(warehouse / "rows")
    (sink,) = topology.sinks
    committer = sink.committer
    assert isinstance(committer, RecordingCommitter)
    entries = history(topology)
    assert [(e.txid, e.rows, e.committed) for e in entries] == [
        (2, {table: 1}, True),
        (1, {table: 1}, True),
    ]
    status = read_status("own-log", [table], 2, {table: committer})
    assert (status.first_txids, status.unread, status.txids) == ({table: 1}, {}, (1, 2))
    recovered = read_tables(topology)
    assert (recovered.progress.committed.txid, recovered.epoch) == (2, committer.newest_epoch())
    assert recovered.progress.committed.spouts == {"s": entries[0].read["s"]}
    (finding,) = check_own_log(table, committer)
    assert (finding.level, "txid 2" in finding.found) == ("ok", True)
    tables = TopologyTables("own-log", (table,), 2, {table: committer})
    assert (tables.delta_tables, tables.tables) == ((), (table,))


def test_the_page_follows_such_a_table(tmp_path: Path) -> None:
    """The page indexes each publication once; a program brings the committer, a name does not."""
    committer = RecordingCommitter(tmp_path)
    index = LogIndex(tmp_path / "index.sqlite", "t")
    follower = OwnLogFollower(index, 0, committer, most=3)
    assert (follower.catch_up(), follower.newest) == (0, -1)
    for number, txids in enumerate([(1, 2, 3, 4), (5,), ()]):
        for txid in txids:
            committer._append(
                {"epoch": 1, "publication": publication(txid).model_dump(mode="json")}
            )
        assert follower.catch_up() == min(len(txids), 3), number
    assert [one.txid for one in index.page(Filter()).txids] == [5, 4, 3, 2]
    index.close()
    facts = TopologyFacts.of(topology_into(tmp_path))
    assert [*facts.own_logs] == [str(tmp_path)]
    assert TopologyFacts.of_line(facts.to_line()).own_logs == {}


def test_a_name_alone_cannot_be_read(tmp_path: Path) -> None:
    """Without the committer there is only a path, and the message says to name the program."""
    with pytest.raises(UserError, match="name the program: FILE.py:TOPOLOGY"):
        table_log(str(tmp_path / "app.db:events"))
