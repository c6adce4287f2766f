"""Headers of CSV files with names that no schema can have.

A header may lack a name, or have one twice: pandas writes its index without a name. Spark's
inference makes names up for these (`_c0`; `a0` and `a2` for two columns `a`), but its reader
refuses the header when it compares it with them. So they are compared here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spouts._file_columns import columns_of
from spouts._listing import Listing
from spouts._uris import literal
from txn.attempts import TransactionAttempt
from txn.errors import BatchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Headers"]


class Headers:
    """Compares headers with a schema that has names which Spark may have made up.

    Args:
        whose: the spout, for messages.
        options: of Spark's reader.
    """

    def __init__(self, whose: str, listing: Listing, options: Mapping[str, Any]) -> None:
        """See the class."""
        self._whose = whose
        self._listing = listing
        self._options = {**options, **listing.hadoop}

    def checked(
        self,
        spark: SparkSession,
        names: Sequence[str],
        schema: StructType,
        attempt: TransactionAttempt,
    ) -> dict[str, Any]:
        """The options for reading these files, in which Spark need not compare what was compared.

        Raises:
            BatchError: a header has other names than the schema.
        """
        given = {name.lower(): str(value).lower() for name, value in self._options.items()}
        insists = (given.get("header"), given.get("enforceschema")) == ("true", "false")
        known = _lower(schema.fieldNames())
        if not insists or not _may_be_made_up(known):
            return self._options
        reader = spark.read.format("csv").options(**self._options)
        reader = reader.option("inferSchema", False).option("enforceSchema", True)
        for name in names:
            if _lower(columns_of(self._listing, name, "csv", self._options) or ()) == known:
                continue
            found = reader.load(literal(self._listing.uri(name))).columns
            if found and _lower(found) != known:
                raise BatchError(
                    f"{self._whose}: the CSV header of {name}, read for {attempt}, does not "
                    f"conform to the schema: it has {', '.join(found)}, and the schema "
                    f"{', '.join(schema.fieldNames())}. Give the spout a schema with the header's "
                    "names; or put a file with the right columns beside it under a new name, and "
                    "let this batch pass (on_exhausted='quarantine').",
                    number="TXN-508",
                )
        left = {k: v for k, v in self._options.items() if k.lower() != "enforceschema"}
        return {**left, "enforceSchema": True}


def _lower(names: Sequence[str] | Mapping[str, Any]) -> list[str]:
    return [name.lower() for name in names]


def _may_be_made_up(names: Sequence[str]) -> bool:
    """Return whether a name may stand for none, or several for one that is there twice."""
    numbered = [name.removesuffix(str(i)) for i, name in enumerate(names) if name.endswith(str(i))]
    return "_c" in numbered or any(count > 1 for count in Counter(numbered).values())
