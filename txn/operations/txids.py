"""The committed txids of a topology as a table: for Spark, Arrow, pandas, a chart or a loop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, overload

from txn.errors import TopologyError

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame, SparkSession

    from txn.operations.history import HistoryEntry
    from txn.protocol.backend import ProgressBackend
    from txn.topology import Topology

__all__ = ["History", "history"]

_SHOWN = 20
_COLUMNS = ("txid", "attempt", "committed", "published_at", "read", "rows", "versions")


def history(
    topology: Topology | str,
    *,
    zookeeper: str | ProgressBackend = "embedded",
    limit: int | None = None,
) -> History:
    """Read the newest txids of a topology from its tables' logs. Changes nothing.

    Args:
        topology: the object; or a name, whose tables ZooKeeper knows; or "FILE.py:TOPOLOGY".
        zookeeper: as for `Topology.run`, or a backend. The object needs none: a txid then counts
            as committed if all its tables hold it.
        limit: the most txids to return; None: all that the logs still have.

    Raises:
        TopologyError: `limit` is less than 1.
        TxnError: a table or ZooKeeper is missing or cannot be read.
    """
    from txn.operations.history import history as read

    if limit is not None and limit < 1:
        raise TopologyError(
            f"history was given limit={limit}: it must be 1 or more, or None for all txids.",
            number="TXN-109",
        )

    if isinstance(topology, str):
        from txn.operations.tables.topology_tables import tables_of

        tables = tables_of(topology, zookeeper)
        entries = read(
            tables.topology,
            tables.tables,
            tables.committed,
            limit,
            tables.committers,
            tables.renamed,
        )
        return History(tables.topology, entries)
    committers = {sink.name: sink.committer for sink in topology.sinks}
    renamed = topology.definition.renamed
    return History(topology.name, read(topology.name, committers, None, limit, committers, renamed))


class History(Sequence["HistoryEntry"]):
    """Txids of a topology, the newest first; a sequence of `HistoryEntry`.

    As a table it has a row for each txid with the columns `topology`, `txid`, `attempt`, `epoch`,
    `committed`, `quarantined` (the error for which it was committed empty), `published_at` (when
    the last table held it), `read` (stream -> what it read, in a few words), `metadata` (all of
    that, as JSON), `rows` (table -> rows staged), `versions` (table -> version that holds it),
    `violations` (JSON) and `timings_ms` (station -> milliseconds).
    """

    def __init__(self, topology: str, entries: Sequence[HistoryEntry]) -> None:
        self.topology = topology
        self._entries = tuple(entries)

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, at: int) -> HistoryEntry: ...
    @overload
    def __getitem__(self, at: slice) -> History: ...
    def __getitem__(self, at: int | slice) -> HistoryEntry | History:
        if isinstance(at, slice):
            return History(self.topology, self._entries[at])
        return self._entries[at]

    def __repr__(self) -> str:
        if not self._entries:
            return f"<History of '{self.topology}': no txid>"
        newest, oldest = self._entries[0].txid, self._entries[-1].txid
        return f"<History of '{self.topology}': {len(self)} txids, {oldest} to {newest}>"

    def _repr_html_(self) -> str:
        rows = [self._row(entry) for entry in self._entries[:_SHOWN]]
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_cell(row[name]))}</td>' for name in _COLUMNS)}</tr>"
            for row in rows
        )
        return f"<p>{escape(repr(self)[1:-1])}</p><table><tr>{head}</tr>{body}</table>"

    def to_arrow(self) -> pa.Table:
        """Return an Arrow table."""
        import pyarrow as pa

        counts = pa.map_(pa.string(), pa.int64())
        words = pa.map_(pa.string(), pa.string())
        schema = pa.schema(
            [
                ("topology", pa.string()),
                ("txid", pa.int64()),
                ("attempt", pa.int64()),
                ("epoch", pa.int64()),
                ("committed", pa.bool_()),
                ("quarantined", pa.string()),
                ("published_at", pa.timestamp("us", "UTC")),
                ("read", words),
                ("metadata", pa.string()),
                ("rows", counts),
                ("versions", counts),
                ("violations", pa.string()),
                ("timings_ms", pa.map_(pa.string(), pa.float64())),
            ]
        )
        maps = ("read", "rows", "versions", "timings_ms")
        rows = [self._row(entry) for entry in self._entries]
        for row in rows:
            row |= {name: list(row[name].items()) for name in maps}
        return pa.Table.from_pylist(rows, schema=schema)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with maps as dicts; pandas must be installed."""
        return self.to_arrow().to_pandas(maps_as_pydicts="strict")

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Return a Spark DataFrame."""
        return spark.createDataFrame(self.to_arrow())

    def plot(self) -> Figure:
        """Draw throughput, latency by station, and the timeline of the newest txids.

        A notebook shows the figure; `figure.savefig("txids.png")` writes it. Needs the extra
        `plot`. The logs do not hold a source's lag: `RunReport.plot` shows it.

        Raises:
            SetupError: matplotlib is not installed.
        """
        from txn.notebook.charts import draw

        facts = [entry.facts() for entry in reversed(self._entries)]
        return draw(repr(self)[1:-1], facts, "rows staged")

    def _row(self, entry: HistoryEntry) -> dict[str, Any]:
        from datetime import datetime, timezone

        fields = entry.to_json()
        return {
            **fields,
            "topology": self.topology,
            "published_at": datetime.fromtimestamp(entry.timestamp_ms / 1000, timezone.utc),
            "metadata": json.dumps(fields["metadata"]),
            "versions": fields["tables"],
            "violations": json.dumps(fields["violations"]),
        }


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return f"{value:%Y-%m-%d %H:%M:%S}" if hasattr(value, "strftime") else str(value)
