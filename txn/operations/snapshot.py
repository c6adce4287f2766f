"""All tables of a topology as of one committed txid, with Spark or without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from txn.errors import TableRefusedError, TopologyError, UserError
from txn.interfaces.committer_capabilities import ReadableTable
from txn.interfaces.published import PUBLISHED
from txn.operations.history import history
from txn.operations.plugins import COMMITTERS
from txn.operations.table_logs import opened_table, table_log
from txn.operations.tables.topology_tables import TopologyTables, tables_of
from txn.storage.reader_extra import connect
from txn.storage.storage import Storage
from txn.text import first_line

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession

    from txn.protocol.backend import ProgressBackend
    from txn.topology import Topology

__all__ = ["Snapshot", "publish_once", "query_of", "snapshot"]

_NEWEST = 100
"""Of so many txids, far more than can be open, one is committed."""
_NOTHING = "it holds nothing yet, or is of another package"
_ONLY_SPARK = ("TXN-310", "TXN-311")
"""Numbers of errors of tables that DuckDB cannot read, and Spark can."""
_KINDS = {
    "append": "append_table",
    "upsert": "state_table",
    "log": "state_table",
    "log-with-removal": "state_table",
}
"""Kind of a table -> the entry point of its class."""


class Snapshot(Mapping[str, Any]):
    """Name of a table -> its rows: a DataFrame of Spark, or a relation of DuckDB.

    Each is a view of that name, too: `snapshot.sql("SELECT ...")`.
    """

    def __init__(
        self,
        topology: str,
        txid: int,
        paths: Mapping[str, str],
        left_out: Mapping[str, str],
        session: Any,
        rows: Mapping[str, Any],
    ) -> None:
        self.topology = topology
        self.txid = txid
        """The txid as of which all tables are."""
        self.paths = dict(paths)
        """Name -> path."""
        self.left_out = dict(left_out)
        """Path of a table that is not here -> why."""
        self._session, self._rows = session, dict(rows)

    def __getitem__(self, name: str) -> Any:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        without = f"; without {', '.join(self.left_out)}" if self.left_out else ""
        return f"<{self.topology} as of txid {self.txid}: {', '.join(self) or 'no table'}{without}>"

    def sql(self, query: str) -> Any:
        """Run a query over the views: a DataFrame of Spark, or a relation of DuckDB."""
        return self._session.sql(query)


def snapshot(
    spark: SparkSession | None,
    topology: Topology | str,
    txid: int | Literal["newest"] = "newest",
    *,
    published: bool = False,
    zookeeper: str | ProgressBackend = "embedded",
    connection: duckdb.DuckDBPyConnection | None = None,
) -> Snapshot:
    """Show every table of a topology as of one committed txid. Changes nothing.

    Tables that hold nothing yet, those of other packages, and without Spark those that only Spark
    can read, are `left_out`.

    Args:
        spark: the session whose DataFrames and temporary views the tables become; None: relations
            and views of DuckDB, without Spark and Java (`pip install 'txn-spark[reader]'`).
        topology: the object; or a name, whose tables ZooKeeper knows; or "FILE.py:TOPOLOGY".
        txid: "newest": the newest one that is committed.
        published: show the published tables instead (`TxnState.publish`), as of the newest txid up
            to `txid` that all of them show; only a program knows them.
        zookeeper: as for `Topology.run`, or a backend. The object needs none: a txid then counts
            as committed if all its tables hold it.
        connection: DuckDB's, where the views are made; None: a new one, in UTC.

    Raises:
        TopologyError: nothing is committed yet, or not as much as `txid`.
        TableRefusedError: a table cannot be read as of the txid: its log or its files of that time
            are gone, or it holds that txid in one version with later ones.
        TxnError: a table or ZooKeeper is missing or cannot be read.
    """
    tables = _tables(topology, zookeeper)
    committed = tables.committed or 0
    chosen = committed if txid == "newest" else txid
    if not 1 <= chosen <= committed:
        newest = f"txid {txid}: the newest one is {committed}" if committed else "anything yet"
        raise TopologyError(
            f"Topology '{tables.topology}' has not committed {newest}.",
            number="TXN-109",
        )
    if published:
        readers: dict[str, ReadableTable] = {p: t.reader() for p, t in tables.published.items()}
        chosen = _shown_by_all(tables, chosen)
    else:
        readers = {
            path: found
            for path in tables.delta_tables
            if (found := _reader_of(path, tables.storage_options.get(path))) is not None
        }
    if spark is None and connection is None:
        connection = connect()
    names = _names(list(readers))
    rows: dict[str, Any] = {}
    left_out = {path: _NOTHING for path in tables.tables if path not in readers and not published}
    for path, reader in readers.items():
        name, at = names[path], chosen if published else _held(path, tables, chosen)
        if spark is not None:
            rows[name] = reader.read(spark, at)
            rows[name].createOrReplaceTempView(f"`{name}`")
            continue
        try:
            rows[name] = reader.to_duckdb(at, connection=connection)
        except TableRefusedError as error:
            if error.number not in _ONLY_SPARK:
                raise
            left_out[path] = first_line(error)
        else:
            rows[name].create_view(name)
    by_name = {names[path]: path for path in readers if names[path] in rows}
    return Snapshot(tables.topology, chosen, by_name, left_out, spark or connection, rows)


def query_of(
    topology: str,
    table: str,
    txid: int | None,
    *,
    columns: Sequence[str] = (),
    dialect: Literal["duckdb", "spark", "trino"] = "duckdb",
    named: str | None = None,
    zookeeper: str | ProgressBackend = "embedded",
) -> str:
    """Return an engine's query for a table of a topology. Changes nothing.

    Args:
        topology: its name, whose tables ZooKeeper knows; or "FILE.py:TOPOLOGY".
        table: the path, or the name that the table has in a `snapshot`.
        txid: None: as of its newest version.
        columns: names in their order; empty: all.
        dialect: the engine.
        named: the table's name in a catalog of Spark or Trino; None: their default.

    Raises:
        TopologyError: there is no such table, or it holds no row yet.
        TableRefusedError: as `snapshot`; or the engine cannot compute a value.
        TxnError: a table or ZooKeeper is missing or cannot be read.
    """
    tables = tables_of(topology, zookeeper)
    names = _names(tables.delta_tables)
    path = next((path for path in names if table in (path, names[path])), None)
    reader = None if path is None else _reader_of(path, tables.storage_options.get(path))
    if reader is None:
        known = ", ".join(sorted(names.values())) or "none"
        why = "has no table" if path is None else "has nothing that can be read in table"
        raise TopologyError(
            f"Topology '{tables.topology}' {why} '{table}'. Its tables are {known}.",
            number="TXN-109",
        )
    return reader.sql(txid, columns=columns or None, dialect=dialect, table=named)


def publish_once(
    topology: Topology | str,
    table: str,
    path: str,
    txid: int | Literal["newest"] = "newest",
    *,
    columns: Sequence[str] = (),
    top: int | None = None,
    by: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    zookeeper: str | ProgressBackend = "embedded",
) -> int:
    """Write what readers see of a table, as of one committed txid, to a new Delta table.

    Without Spark and Java. Its log names the txid, as that of `TxnState.publish` does, which
    keeps such a table up.

    Args:
        topology: as `snapshot`.
        table: the path, or the name that the table has in a `snapshot`.
        path: a new or empty folder.
        columns: in this order; empty: all.
        top: only so many rows, the first ones in the order of `by`.
        by: SQL, such as "spent DESC, customer".
        storage_options: credentials and endpoints for `path`.

    Returns:
        The txid.

    Raises:
        TopologyError: there is no such table, or half a ranking.
        TableRefusedError: as `snapshot`; or there is a table at `path`.
    """
    if (top is None) != (by is None):
        raise TopologyError("A ranking needs both, top and by.", number="TXN-109")
    seen = snapshot(None, topology, txid, zookeeper=zookeeper)
    name = next((n for n, p in seen.paths.items() if table in (n, p)), None)
    if name is None:
        known = ", ".join(seen) or "none"
        raise TopologyError(
            f"Topology '{seen.topology}' has no table '{table}' that can be read without Spark. "
            f"There are {known}.",
            number="TXN-109",
        )
    rows = seen[name]
    rows = rows if by is None else rows.order(by).limit(top)
    quoted = (f'"{column.replace(chr(34), chr(34) * 2)}"' for column in columns)
    rows = rows.project(", ".join(quoted)) if columns else rows
    _write(rows, path, seen, storage_options)
    return seen.txid


def _write(
    rows: duckdb.DuckDBPyRelation,
    path: str,
    seen: Snapshot,
    storage_options: Mapping[str, str] | None,
) -> None:
    # Loaded for the one who writes: `import txn` is to be quick.
    from txn.delta.delta_rs import CommitProperties, DeltaTable, Schema, write_deltalake
    from txn.delta.loading import is_there

    if is_there(Storage(path, dict(storage_options or {}))):
        raise TableRefusedError(
            f"There is a table at {path} already. Give a new or empty folder.", number="TXN-301"
        )
    batches = rows.to_arrow_reader()
    options = None if storage_options is None else dict(storage_options)
    table = DeltaTable.create(
        path,
        Schema.from_arrow(batches.schema),
        configuration={"txn.kind": "published", "txn.topology": seen.topology},
        storage_options=options,
        raise_if_key_not_exists=False,
    )
    record = {"topology": seen.topology, "txid": seen.txid}
    write_deltalake(
        table,
        batches,
        mode="append",
        commit_properties=CommitProperties(custom_metadata={PUBLISHED: record}),
    )


def _reader_of(path: str, options: Mapping[str, str] | None = None) -> ReadableTable | None:
    """The reader of a table, by its kind; None: it does not exist, or has another kind."""
    try:
        properties = opened_table(path, options).metadata().configuration
    except UserError:
        return None
    name = _KINDS.get(properties.get("txn.kind") or "")
    if name is None:
        return None
    (entry,) = metadata.entry_points(group=COMMITTERS, name=name)
    reader: ReadableTable = entry.load()(path, storage_options=dict(options or {}))
    return reader


def _held(path: str, tables: TopologyTables, txid: int) -> int:
    """The newest txid up to `txid` in a table's log: it may lack one that brought it no rows."""
    log = table_log(path, tables.committers.get(path))
    newest = next(log.publications(), None)
    return txid if newest is None else min(txid, newest.publication.last_txid)


def _tables(topology: Topology | str, zookeeper: str | ProgressBackend) -> TopologyTables:
    if isinstance(topology, str):
        tables = tables_of(topology, zookeeper)
    else:
        tables = TopologyTables.of_program(topology)
    if tables.committed is not None or not tables.committers:
        return tables
    entries = history(tables.topology, tables.tables, None, _NEWEST, tables.committers)
    committed = next((entry.txid for entry in entries if entry.committed), None)
    return replace(tables, committed=committed)


def _shown_by_all(tables: TopologyTables, txid: int) -> int:
    """The newest txid up to this one that all published tables show."""
    shown = [set(table.reader().txids()) for table in tables.published.values()]
    common = [one for one in set.intersection(*shown) if one <= txid] if shown else []
    if not common:
        why = (
            "No program is named that publishes tables: name it as FILE.py:TOPOLOGY."
            if not shown
            else f"Its published tables have no txid up to {txid} in common. Wait for the next one."
        )
        raise TopologyError(f"Topology '{tables.topology}': {why}", number="TXN-109")
    return max(common)


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Path -> the last part of it; with the one before where two are the same."""
    parts = {path: path.rstrip("/").split("/") for path in paths}
    counts = Counter(part[-1] for part in parts.values())
    return {
        path: part[-1] if counts[part[-1]] == 1 else "_".join(part[-2:])
        for path, part in parts.items()
    }
