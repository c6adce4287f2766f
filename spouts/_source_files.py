"""Which files a spout has, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spouts._listing import Listing
from spouts._options import encoding_of, is_set
from txn.interfaces import Unparsed

__all__ = ["SourceFiles"]


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

    def are(self, option: str) -> bool:
        """Whether an option is true, named in small letters."""
        return is_set(self.options, option)
