"""The files of a spout, and the options for reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spouts._schemas import NewColumns
from spouts.files.folder.listing import Listing
from spouts.records.bad_rows import PARSED
from spouts.records.options import encoding_of, is_set, lowered
from txn.errors import TopologyError
from txn.interfaces import Unparsed
from txn.spark.jvm import jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ENCODINGS", "SourceFiles"]

_ALL_OF_JAVA = "spark.sql.legacy.javaCharsets"
ENCODINGS = {"ISO-8859-1", "US-ASCII", "UTF-16", "UTF-16BE", "UTF-16LE", "UTF-32", "UTF-8"}
"""Encodings that Spark's parsers read."""


@dataclass(frozen=True)
class SourceFiles:
    """The files of a spout."""

    spout: str
    """The spout, for messages."""
    listing: Listing
    form: str
    """The format of the files."""
    options: Mapping[str, Any]
    """Options of Spark's reader, with the spout's defaults."""
    unparsed: Unparsed | None = None
    """The marks for records that do not parse; None: they fail the batch."""
    own_codec: bool = False
    """True: the user may have a codec with an ending of its own."""
    new_columns: NewColumns | None = None
    """What becomes of columns that the schema lacks; None: as the format has it."""

    @property
    def encoding(self) -> str:
        """The encoding in the options, in capitals; empty: not given."""
        return (encoding_of(self.options) or "").upper()

    @property
    def reading(self) -> dict[str, Any]:
        """The options, with those for Spark's reader to reach the files."""
        return {**self.options, **self.listing.hadoop}

    def check_values(self, spark: SparkSession) -> None:
        """Refuse an encoding or a locale that Spark would refuse only in the first batch.

        Raises:
            TopologyError: Spark's parser does not read it, or Java knows no such language.
        """
        encoding = self.encoding or "UTF-8"
        is_known = encoding in ENCODINGS or (self.form, encoding) == ("json", "UTF8")
        if self.form in PARSED and not is_known and spark.conf.get(_ALL_OF_JAVA, "false") != "true":
            raise TopologyError(
                f"{self.spout} cannot read {self.form} as {encoding}, only as "
                f"{', '.join(sorted(ENCODINGS))}. Say one of these, or give the session "
                f"{_ALL_OF_JAVA}=true (--conf), which takes all that Java has.",
                number="TXN-408",
            )
        locale = lowered(self.options).get("locale")
        if locale is None or (jvm := jvm_of(spark)) is None:
            return
        java_locale = jvm.java.util.Locale.forLanguageTag(str(locale))
        if java_locale.getDisplayLanguage(jvm.java.util.Locale.ENGLISH) in (
            "",
            java_locale.getLanguage(),
        ):
            raise TopologyError(
                f"{self.spout}: locale={locale!r} names no language that Java knows, so Spark "
                "would read numbers and dates as if there were none. Write it as 'de-DE' or 'fr'.",
                number="TXN-408",
            )

    def are(self, option: str) -> bool:
        """Return True if an option, named in small letters, is true."""
        return is_set(self.options, option)
