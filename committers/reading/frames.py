"""Tables as frames of other libraries, without Spark and Java: DuckDB reads their files."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow import dataset

from committers.publishing.files import load_files
from committers.publishing.shown import version_showing
from committers.reading.changes import CHANGE_TYPE, changes_sql
from committers.reading.dialect import DIALECTS, DISTINCT, DialectName
from committers.reading.html import as_html
from committers.reading.lookup import KeyLookup, KeysAndQuery
from committers.reading.query import ShownSql, rows_sql
from committers.reading.sketches import estimate
from committers.reading.types import quoted
from committers.state.properties import shape_of
from committers.state.shape import StateShape
from committers.state.versions import version_of, watermark_at
from txn.delta.delta_rs import DeltaError, DeltaTable
from txn.delta.loading import load, require
from txn.delta.log import TableLog
from txn.errors import TableRefusedError, TxnError
from txn.storage.reader_extra import connect, missing
from txn.storage.storage import Storage

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    import pyarrow as pa

__all__ = ["Frames"]

_GLOB_CHARACTERS = "[*?"
_IN_NOTEBOOK = 20
"""The most rows that a notebook shows."""
_HARMLESS = {"timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of tables whose files are read as others."""


@dataclass(frozen=True)
class _Loaded:
    """A version of a table, as readers as of a txid see it."""

    storage: Storage
    table: DeltaTable
    columns: Mapping[str, Any]
    shape: StateShape | None
    """The description of a state table; None: a table of rows."""
    txid: int | None

    @classmethod
    def of(cls, storage: Storage, txid: int | None, *, by_files: bool = True) -> _Loaded:
        """Load the version, which for a table of rows is the newest one.

        Args:
            by_files: refuse a table of which the files alone do not say what it holds.
        """
        newest = require(storage)
        kind = newest.metadata().configuration.get("txn.kind")
        is_state = kind not in ("append", "published")
        table = newest
        if kind == "published":
            at, txid = version_showing(storage, txid), None
            table = newest if at is None else load(storage, at)
        elif is_state and txid is not None:
            table = load(storage, version_of(storage, txid))
        if by_files:
            _require_plain_files(table, storage.location)
        fields = json.loads(table.schema().to_json())["fields"]
        columns = {field["name"]: field["type"] for field in fields}
        if not is_state:
            return cls(storage, table, columns, None, txid)
        shape = shape_of(table.metadata().configuration, storage.location)
        if shape.expiry is not None:
            shape = shape.at(watermark_at(storage, table.version()))
        return cls(storage, table, columns, shape, txid)

    def paths(self) -> list[str]:
        """Its files."""
        return sorted(load_files(self.table))

    def source(
        self, connection: duckdb.DuckDBPyConnection | None, paths: Sequence[str] | None = None
    ) -> str:
        """Return what FROM names for its files; empty if there are none.

        Args:
            connection: where the files of an object store become a view, by the credentials that
                the table has; None: they are named.
            paths: some of its files; None: all.
        """
        chosen = self.paths() if paths is None else paths
        if connection is None or self.storage.is_local or not chosen:
            return _listed([self.storage.url(path) for path in chosen])
        name = f"txn_files_{uuid.uuid4().hex}"
        files = self.table.to_pyarrow_dataset()
        keep = set(chosen)
        some = [f for f in files.get_fragments() if f.path.lstrip("/") in keep]
        connection.register(name, dataset.FileSystemDataset(some, files.schema, files.format))
        return name

    @property
    def is_rewritten(self) -> bool:
        """True if a file that stays shows the same keys and values: no row of others meets its."""
        return self.shape is not None and not self.shape.readers_merge and not self.shape.expiry

    def query(
        self, source: str, names: Sequence[str] | None, dialect: DialectName = "duckdb"
    ) -> str:
        """The SQL of some columns; None: all.

        Args:
            source: what stands after FROM for the table; empty: there are no files.
        """
        where, engine = self.storage.location, DIALECTS[dialect]
        if self.shape is None:
            return rows_sql(self.columns, source, names, self.txid, where, engine)
        return ShownSql(self.shape, self.columns, where, engine).text(source, names)


class Frames(ABC):
    """The methods of a table for readers without Spark.

    A state table shows keys and values, as its `read`; a table of rows its rows with their txid.
    """

    @abstractmethod
    def _folder(self) -> Storage:
        """The table's folder."""

    def _repr_html_(self) -> str | None:
        """Return the first rows for a notebook, with txid and age; None: as in a terminal."""
        try:
            connection, loaded = _able(None), _Loaded.of(self._folder(), None)
            query = loaded.query(loaded.source(connection), None)
            rows = connection.sql(query).limit(_IN_NOTEBOOK)
            newest = next(TableLog(loaded.storage).backwards(loaded.table.version()))
            return as_html(loaded.storage.location, newest, rows, time.time())
        except (TxnError, DeltaError):
            return None

    def sql(
        self,
        txid: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        dialect: DialectName = "duckdb",
        table: str | None = None,
    ) -> str:
        """Keys and values, or rows, as one query in the SQL of an engine.

        It is that of one version, and fails when VACUUM has deleted its files. In DuckDB's SQL it
        names the files, and values of `CountDistinct` need a function that only `to_duckdb`
        provides. Spark and Trino read the table by Delta's log.

        Args:
            txid: as of this txid; None: as of the newest version.
            columns: names in their order; None: all.
            dialect: the engine: "duckdb", "spark" or "trino".
            table: the table's name in a catalog of Spark or Trino, its parts without quotes; None:
                in Spark its path, in Trino `delta.default.` and the last part of the path.

        Raises:
            TableRefusedError: as `read`; or the table has no such column, or a value is of an
                aggregate of the user's own that shows another value than it stores; or the engine
                cannot compute a value as Spark does.
            ValueError: another dialect; or a name for DuckDB, which reads files.
        """
        if dialect not in DIALECTS or (dialect == "duckdb" and table is not None):
            raise ValueError(
                f"dialect={dialect!r} and table={table!r} name no query: the dialects are "
                f"{', '.join(DIALECTS)}, and with duckdb there is no table= to name."
            )
        loaded = _Loaded.of(self._folder(), txid, by_files=dialect == "duckdb")
        if dialect == "duckdb":
            return loaded.query(loaded.source(None), columns)
        url, version = loaded.storage.url(), loaded.table.version()
        return loaded.query(DIALECTS[dialect].source(url, version, table), columns, dialect)

    def to_duckdb(
        self,
        txid: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        connection: duckdb.DuckDBPyConnection | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """Keys and values, or rows, as a relation of DuckDB: it reads files when asked for rows.

        Args:
            txid: as of this txid; None: as of the newest version.
            columns: names in their order; None: all.
            where: an SQL condition over the columns, in DuckDB's words.
            connection: where the relation lives; None: a new one, in UTC.

        Raises:
            TableRefusedError: as `sql`.
            SetupError: DuckDB is not installed.
        """
        connection = _able(connection)
        loaded = _Loaded.of(self._folder(), txid)
        source = loaded.source(connection)
        query = loaded.query(source, columns)
        if where is None:
            return connection.sql(query)
        rows = connection.sql(loaded.query(source, None)).filter(where)
        return rows if columns is None else rows.project(", ".join(map(quoted, columns)))

    def changes(
        self,
        from_txid: int,
        to_txid: int | None = None,
        *,
        connection: duckdb.DuckDBPyConnection | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """What changed from one txid to another: rows with a `_change_type`.

        That is "insert" for a key that is new, "delete" for one that is gone, and for one with
        other values "update_preimage" and "update_postimage", as in Delta's change data feed. Both
        states are compared: a key that changed and changed back is not among the rows. With
        layout="upsert" only files that differ are read.

        Args:
            from_txid: what holds as of this txid is the state before.
            to_txid: as of this txid; None: as of the newest version.
            connection: where the relation lives; None: a new one, in UTC.

        Raises:
            TableRefusedError: as `sql`; or it is not a state table, or its keys have changed
                in between.
            SetupError: DuckDB is not installed.
        """
        connection = _able(connection)
        folder = self._folder()
        before, after = _Loaded.of(folder, from_txid), _Loaded.of(folder, to_txid)
        keys = None if after.shape is None else after.shape.keys
        if before.shape is None or after.shape is None or before.shape.keys != keys:
            then = "none" if before.shape is None else ", ".join(before.shape.keys) or "none"
            raise TableRefusedError(
                f"The changes of table {folder.location} from txid {from_txid} on cannot be told: "
                f"its keys are {', '.join(keys or ()) or 'none'}, and were {then}. Compare both "
                "states yourself: to_duckdb(txid, connection=...).",
                number="TXN-310",
            )
        if CHANGE_TYPE in (name.lower() for name in after.columns):
            raise TableRefusedError(
                f"Table {folder.location} has a column of the name '{CHANGE_TYPE}', which changes "
                "have. Compare both states yourself: to_duckdb(txid, connection=...).",
                number="TXN-310",
            )
        former, present = before.paths(), after.paths()
        if before.is_rewritten and after.is_rewritten:
            both = set(former) & set(present)
            former, present = (sorted(set(paths) - both) for paths in (former, present))
        keys, values = after.shape.keys, after.shape.values
        common = [name for name in values if name in before.shape.values]
        then = before.query(before.source(connection, former), [*keys, *common])
        new = "".join(f", NULL AS {quoted(name)}" for name in values if name not in common)
        now = after.query(after.source(connection, present), None)
        return connection.sql(changes_sql(keys, values, f"SELECT *{new} FROM ({then})", now))

    def key_lookup(self) -> KeyLookup:
        """Look up single keys of a state table in milliseconds, without Spark (`multiGet`).

        It stays at the version that is the newest now, until its `refresh`.

        Raises:
            TableRefusedError: as `sql`; or it is not a state table.
            SetupError: DuckDB is not installed.
        """
        connection, folder = _able(None), self._folder()

        def load() -> KeysAndQuery:
            loaded = _Loaded.of(folder, None)
            if loaded.shape is None:
                raise TableRefusedError(
                    f"Table {folder.location} has rows and no keys. Use to_duckdb() with where=.",
                    number="TXN-310",
                )
            keys = {name: loaded.columns[name] for name in loaded.shape.keys}
            return keys, loaded.query(loaded.source(connection), None), loaded.table.version()

        return KeyLookup(connection, load, folder.location)

    def to_arrow(
        self,
        txid: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> pa.Table:
        """Keys and values, or rows, as a table of Arrow. Integers are integers, instants in UTC.

        Args:
            txid: as of this txid; None: as of the newest version.
            columns: names in their order; None: all.
            where: an SQL condition over the columns, in DuckDB's words.

        Raises:
            TableRefusedError: as `sql`.
            SetupError: DuckDB is not installed.
        """
        return self.to_duckdb(txid, columns=columns, where=where).to_arrow_table()

    def to_polars(
        self,
        txid: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> pl.DataFrame:
        """Keys and values, or rows, as a frame of polars; arguments and errors as `to_arrow`."""
        try:
            import polars as pl
        except ImportError as error:
            raise missing("polars") from error
        frame = pl.from_arrow(self.to_arrow(txid, columns=columns, where=where))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_pandas(
        self,
        txid: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> Any:
        """Keys and values, or rows, as a frame of pandas; arguments and errors as `to_arrow`.

        Its types are Arrow's: an integer that is NULL makes no column of floats.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise missing("pandas") from error
        table = self.to_arrow(txid, columns=columns, where=where)
        return table.to_pandas(types_mapper=pd.ArrowDtype)


def _require_plain_files(table: DeltaTable, path: str) -> None:
    """Refuse a table of which the files alone do not say what it holds."""
    protocol = table.protocol()
    features = set(protocol.reader_features or ()) - _HARMLESS
    if features or protocol.min_reader_version == 2:
        raise TableRefusedError(
            f"State table {path} has features of Delta that another writer has turned on "
            f"({', '.join(sorted(features)) or 'columnMapping'}), so its files alone do not say "
            "what it holds. Read it with Spark.",
            number="TXN-310",
        )


def _listed(paths: Sequence[str]) -> str:
    """Return what FROM names for these files; empty if there are none."""
    if not paths:
        return ""
    texts = ", ".join(f"'{_escaped(path)}'" for path in paths)
    return f"read_parquet([{texts}], union_by_name = true, hive_partitioning = false)"


def _escaped(path: str) -> str:
    literal = "".join(f"[{char}]" if char in _GLOB_CHARACTERS else char for char in path)
    return literal.replace("'", "''")


def _able(connection: duckdb.DuckDBPyConnection | None) -> duckdb.DuckDBPyConnection:
    """A connection, or a new one, that knows the function for values of `CountDistinct`."""
    connection = connection or connect()
    find = "SELECT 1 FROM duckdb_functions() WHERE function_name = ?"
    if not connection.execute(find, [DISTINCT]).fetchall():
        connection.create_function(DISTINCT, estimate, ["BLOB[]"], "BIGINT")
    return connection
