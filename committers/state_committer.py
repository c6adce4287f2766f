"""The shared part of both state layouts: take partial aggregates, report changed keys."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from committers.staging.area import random_id
from committers.state.changes import refuse_taken_names
from committers.state.partials import PartialRows, columns_read, shown_alone
from committers.table_committer import TableCommitter
from txn.errors import TopologyError
from txn.interfaces import Aggregate, Publication, Semantics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["StateCommitter", "StateLayout"]


class StateLayout(Protocol):
    """The common protocol of the layouts of a state table."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Grouping columns; empty for one global row."""

    @property
    def aggregates(self) -> Mapping[str, Aggregate]:
        """Value column -> aggregate."""

    @property
    def remove_where(self) -> str | None:
        """The condition that removes a key; None: keys stay."""


L = TypeVar("L", bound=StateLayout)


class StateCommitter(TableCommitter, Generic[L]):
    """A committer of running aggregates by key; subclasses define how a table stores them.

    Args:
        layout: its keys, aggregates and columns.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        semantics: Semantics | str,
        layout: L,
        *,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self._layout = layout  # before `_begin`, which reads it
        self._partials = PartialRows(layout.keys, layout.aggregates)
        super().__init__(
            path, semantics, storage_options=storage_options, new_id=new_id, keys=layout.keys
        )

    def required_columns(self) -> Sequence[str]:
        """The keys and the columns that the aggregates read."""
        return columns_read(self._layout.keys, self._layout.aggregates)

    def complete(self, batch: DataFrame) -> DataFrame | None:
        """The rows, if they have the keys and all columns that the aggregates read."""
        return batch if set(self.required_columns()) <= set(batch.columns) else None

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group of the batch; for a global aggregate always one row."""
        return self._partials.of(batch, count_as)

    def shown(self, partials: DataFrame) -> DataFrame:
        """The keys and values that these partials give in an empty state."""
        layout = self._layout
        return shown_alone(partials, layout.keys, layout.aggregates, layout.remove_where)

    @abstractmethod
    def changes_schema(self, partials: StructType) -> StructType:
        """Keys, values and `prev_<value>`, given the columns of the partials. Runs no job.

        Raises:
            TopologyError: a `prev_<value>` is the name of a key or another value.
        """

    def require_changes(self) -> None:
        """Refuse a `prev_<value>` that is the name of a key or another value."""
        refuse_taken_names(self._layout.keys, tuple(self._layout.aggregates), self.name)

    def _require_one_txid(self, publication: Publication) -> None:
        """Refuse a publication whose changes cannot be separated by txid.

        Raises:
            TopologyError: the publication has several txids.
        """
        if publication.members:
            raise TopologyError(
                f"The changes of one txid in table {self.name} cannot be read: txids "
                f"{publication.first_txid} to {publication.last_txid} are published together. "
                "Run the topology with max_group_commit=1.",
                number="TXN-116",
            )

    def _stored_schema(self) -> StructType:
        """The columns of the table, even before the first batch."""
        return self._logged_schema() if self._staged_schema is None else self._table_schema()

    def _any_session(self) -> SparkSession:
        """The session of the run; before `open`, the active one."""
        from pyspark.sql import SparkSession

        return self._spark if self._context else SparkSession.builder.getOrCreate()
