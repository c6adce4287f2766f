"""Which files a spout has, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spouts._bad_rows import PARSED
from spouts._listing import Listing
from spouts._options import encoding_of, is_set, lowered
from txn.errors import TopologyError
from txn.interfaces import Unparsed
from txn.spark.jvm import jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ENCODINGS", "SourceFiles"]

_ALL_OF_JAVA = "spark.sql.legacy.javaCharsets"
ENCODINGS = {"ISO-8859-1", "US-ASCII", "UTF-16", "UTF-16BE", "UTF-16LE", "UTF-32", "UTF-8"}
"""Those that the parsers of Spark read."""


@dataclass(frozen=True)
class SourceFiles:
    """The files of a spout."""

    whose: str
    """The spout, for messages."""
    listing: Listing
    form: str
    """Their format."""
    options: Mapping[str, Any]
    """Of Spark's reader, with the spout's defaults."""
    unparsed: Unparsed | None = None
    """How records that do not parse are marked; None: they fail the batch."""
    own_codec: bool = False
    """The user may have a codec with an ending of its own."""

    @property
    def encoding(self) -> str:
        """The encoding that the options name, in capitals; empty: they name none."""
        return (encoding_of(self.options) or "").upper()

    @property
    def reading(self) -> dict[str, Any]:
        """The options, with those by which Spark's reader reaches the files."""
        return {**self.options, **self.listing.hadoop}

    def check_values(self, spark: SparkSession) -> None:
        """Refuse an encoding or a locale of which Spark learns in the first batch only.

        Raises:
            TopologyError: Spark's parser does not read it, or Java knows no such language.
        """
        encoding = self.encoding or "UTF-8"
        known = encoding in ENCODINGS or (self.form, encoding) == ("json", "UTF8")
        if self.form in PARSED and not known and spark.conf.get(_ALL_OF_JAVA, "false") != "true":
            raise TopologyError(
                f"{self.whose} cannot read {self.form} as {encoding}, only as "
                f"{', '.join(sorted(ENCODINGS))}. Say one of these, or give the session "
                f"{_ALL_OF_JAVA}=true (--conf), which takes all that Java has.",
                number="TXN-408",
            )
        locale = lowered(self.options).get("locale")
        if locale is None or (jvm := jvm_of(spark)) is None:
            return
        found = jvm.java.util.Locale.forLanguageTag(str(locale))
        if found.getDisplayLanguage(jvm.java.util.Locale.ENGLISH) in ("", found.getLanguage()):
            raise TopologyError(
                f"{self.whose}: locale={locale!r} names no language that Java knows, so Spark "
                "would read numbers and dates as if there were none. Write it as 'de-DE' or 'fr'.",
                number="TXN-408",
            )

    def are(self, option: str) -> bool:
        """Whether an option is true, named in small letters."""
        return is_set(self.options, option)
