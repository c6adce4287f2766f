"""Every spout of the project passes the contract kit (Kafka's runs beside its broker)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from spouts.delta import DeltaSpout
from spouts.files import FileSpout
from spouts.memory import (
    FeederSpout,
    MemoryOpaqueSpout,
    MemoryPartitionedSpout,
    MemoryTransactionalSpout,
)
from spouts.rate import RateSpout
from spouts.reader import ReaderSpout
from txn.interfaces import SpoutKind
from txn.testing import SpoutContract

SCHEMA = "id int"


class TestFileSpout(SpoutContract):
    """One file per arrival; each is a batch."""

    def make_spout(self, folder: Path) -> FileSpout:
        return FileSpout(f"{folder}/*.json", format="json", schema=SCHEMA)

    def add_records(self, folder: Path, ids: Sequence[int]) -> None:
        hidden = folder / ".new"
        hidden.write_text("".join(f'{{"id": {n}}}\n' for n in ids))
        hidden.rename(folder / f"{ids[0]:05d}.json")


class TestSeveralFilesPerBatch(TestFileSpout):
    """One file per record, two in a batch; later names come first."""

    def make_spout(self, folder: Path) -> FileSpout:
        return FileSpout(f"{folder}/*.txt", format="text", files_per_batch=2)

    def add_records(self, folder: Path, ids: Sequence[int]) -> None:
        for n in ids:
            hidden = folder / ".new"
            hidden.write_text(f"{n}\n")
            hidden.rename(folder / f"{1000 - n}.txt")

    id_column = "value"


class InMemory(SpoutContract):
    """A source that is a list of batches, which all spout objects share."""

    def make_source(self, folder: Path) -> None:
        self.batches: list[list[tuple[int]]] = []

    def add_records(self, folder: Path, ids: Sequence[int]) -> None:
        self.batches.append([(n,) for n in ids])


class TestMemoryTransactionalSpout(InMemory):
    """The given batches."""

    def make_spout(self, folder: Path) -> MemoryTransactionalSpout:
        return MemoryTransactionalSpout(self.batches, SCHEMA)


class TestMemoryOpaqueSpout(InMemory):
    """A script by txid."""

    def make_spout(self, folder: Path) -> MemoryOpaqueSpout:
        def script(txid: int, attempt_id: int) -> list[tuple[int]] | None:
            return self.batches[txid - 1] if txid <= len(self.batches) else None

        return MemoryOpaqueSpout(script, SCHEMA)


class TestFeederSpout(SpoutContract):
    """Its rows live in the object, so a crash that it is to survive leaves the object."""

    def make_source(self, folder: Path) -> None:
        self.feeder = FeederSpout(SCHEMA)

    def make_spout(self, folder: Path) -> FeederSpout:
        return self.feeder

    def add_records(self, folder: Path, ids: Sequence[int]) -> None:
        self.feeder.feed([(n,) for n in ids], timeout=0)


class TestMemoryPartitionedSpout(SpoutContract):
    """Transactional: partitions come to be, go away and come back."""

    kind = SpoutKind.TRANSACTIONAL

    def make_source(self, folder: Path) -> None:
        self.rows: dict[str, list[tuple[int]]] = {"a": [], "b": []}
        self.away = False
        self.spout: MemoryPartitionedSpout | None = None

    def make_spout(self, folder: Path) -> MemoryPartitionedSpout:
        self.spout = MemoryPartitionedSpout(self.rows, SCHEMA, take_per_partition=2, kind=self.kind)
        self.spout.set_disabled("b", self.away)
        return self.spout

    def add_records(self, folder: Path, ids: Sequence[int]) -> None:
        for n in ids:
            name = sorted(self.rows)[-1 - n % len(self.rows)]
            self.rows[name].append((n,))
        for name, rows in self.rows.items():
            self._replace(name, rows)

    def _replace(self, name: str, rows: list[tuple[int]]) -> None:
        assert self.spout is not None
        self.spout.remove_partition(name)
        self.spout.add_partition(name, rows)
        self.spout.set_disabled("b", self.away)

    def add_partition(self, folder: Path) -> None:
        assert self.spout is not None
        self.rows["c"] = []
        self.spout.add_partition("c", [])

    def take_partition_away(self, folder: Path) -> None:
        assert self.spout is not None
        self.away = True
        self.spout.set_disabled("b", True)

    def bring_partition_back(self, folder: Path) -> None:
        assert self.spout is not None
        self.away = False
        self.spout.set_disabled("b", False)


class TestMemoryPartitionedSpoutOpaque(TestMemoryPartitionedSpout):
    """Opaque: a batch is planned anew without what is away."""

    kind = SpoutKind.OPAQUE


class TestRateSpout(SpoutContract):
    """Its source is its own counting: more records arrive when its total is raised."""

    id_column = "value"

    def make_source(self, folder: Path) -> None:
        self.total = 0

    def make_spout(self, folder: Path) -> RateSpout:
        contract = self

        class Growing(RateSpout):
            def initialize_transaction(self, attempt, previous):
                self._total = contract.total
                return super().initialize_transaction(attempt, previous)

        return Growing(2, total=0, partitions=1)

    def add_records(self, folder: Path, ids: Sequence[int]) -> None:
        self.total += len(ids)


class TestDeltaSpout(SpoutContract):
    """One version per arrival, in an ordinary Delta table."""

    def make_spout(self, folder: Path) -> DeltaSpout:
        return DeltaSpout(folder / "table")

    def add_records(self, folder: Path, ids: Sequence[int]) -> None:
        rows = pa.table({"id": pa.array(ids, pa.int32())})
        write_deltalake(folder / "table", rows, mode="append")


class TestReaderSpout(InMemory):
    """Promises nothing, and keeps the rest of the contract."""

    def make_spout(self, folder: Path) -> ReaderSpout:
        def read(spark):
            return spark.createDataFrame([row for rows in self.batches for row in rows], SCHEMA)

        return ReaderSpout(read, SCHEMA)
