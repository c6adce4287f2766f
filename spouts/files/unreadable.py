"""Detect files that Spark cannot read, or would read as something else, by their bytes alone.

So every attempt at a batch finds the same ones. The slow check, of all bytes, is left to attempts
after the first: if there is such a file, the first one has failed.
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Mapping
from functools import partial
from typing import IO, TYPE_CHECKING

from spouts.files.folder.listing import PACKED
from spouts.files.source_files import SourceFiles
from txn.interfaces import UNREAD, Unparsed
from txn.spark.lazy import sf
from txn.storage.asking import in_parallel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Unreadable"]

_ENDLESS = (".lz4", ".snappy")
"""Block formats of Hadoop, which reads the whole blocks of a cut-off file without an error."""
_MAGIC = {
    b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\3\4": "zip",
    b"\xfd7zXZ\0": "xz",
}
_PARQUET = (b"PAR1", b"PARE")
_SHOWN = 3
"""Most files that an error names."""


class Unreadable:
    """Checks the files of a spout."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        self._listing = files.listing

    def among(self, sizes: Mapping[str, int], *, whole: bool) -> dict[str, str]:
        """Return the unreadable ones of some files, with the reason.

        Args:
            sizes: name -> bytes.
            whole: check all bytes of text and packed files, and the end of a Parquet file.
        """
        reasons = in_parallel(partial(self._why, whole=whole), [*sizes.items()])
        return {name: why for name, why in zip(sizes, reasons, strict=True) if why}

    def _why(self, file: tuple[str, int], *, whole: bool) -> str | None:
        name, size = file
        packed = name.endswith(PACKED)
        if self._files.form != "parquet" and name.endswith(_ENDLESS) and not self._files.own_codec:
            return "this packing has no mark of its end, so a cut-off file would look whole"
        if size == 0:
            return "it has no bytes" if packed or self._files.form == "parquet" else None
        if self._files.form == "parquet":
            return self._why_not_parquet(name, size) if whole else None
        if packed:
            return self._why_not_gzip(name) if whole and name.endswith(".gz") else None
        if self._files.own_codec:
            return None
        head = self._listing.beginning(name, 10) or b""
        kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
        if head[:3] == b"BZh" and head[4:] == b"1AY&SY":
            kind = "bzip2"
        if kind:
            return f"it is packed by {kind}, which its name does not say as Spark knows it"
        if not whole:
            return None
        with self._listing.opened(name) as text:
            return self._why_not_text(text)

    def _why_not_gzip(self, name: str) -> str | None:
        with self._listing.opened(name) as packed, gzip.open(packed) as file:
            try:
                return self._why_not_text(file)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                return f"it is not a complete gzip file ({error})"

    def _why_not_text(self, file: IO[bytes] | gzip.GzipFile) -> str | None:
        """Check all bytes. Spark replaces invalid UTF-8, and fails at invalid UTF-16 or UTF-32."""
        part = file.read(1 << 20)
        encoding = self._files.encoding or json.detect_encoding(part)
        is_wide = encoding.lower().startswith(("utf-16", "utf-32"))
        decoder = codecs.getincrementaldecoder(encoding if is_wide else "latin-1")()
        try:
            while part:
                decoder.decode(part)
                part = file.read(1 << 20)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            return f"it is not {encoding.upper()} ({error.reason})"
        return None

    def _why_not_parquet(self, name: str, size: int) -> str | None:
        with self._listing.opened(name) as file:
            head = file.read(4)
            file.seek(-min(size, 8), 2)
            end = file.read()
        below = int.from_bytes(end[:4], "little") <= size - 12
        if head in _PARQUET and end[4:] in _PARQUET and below:
            return None
        return "it does not begin and end as a Parquet file does"

    def _place(self, name: str) -> str:
        """Return the file as Spark names it."""
        uri = self._listing.uri(name)
        return uri if self._listing.remote else uri.replace("file:/", "file:///", 1)

    def message(self, reasons: Mapping[str, str], sizes: Mapping[str, int]) -> str:
        """Return a message with the unreadable files and the way out."""
        return (
            f"{self.named(reasons, sizes)}. Give the spout bad_rows='set_aside': such a file is "
            "then set aside alone, and the others go on. Put a whole one beside it, under a new "
            "name with the right ending."
        )

    def named(self, reasons: Mapping[str, str], sizes: Mapping[str, int]) -> str:
        """Return a message with the unreadable files."""
        files = [f"{name} ({sizes[name]} bytes): {why}" for name, why in reasons.items()]
        more = f"; and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        return f"{self._files.spout} cannot read {'; '.join(files[:_SHOWN])}{more}"

    def rows(
        self,
        spark: SparkSession,
        reasons: Mapping[str, str],
        sizes: Mapping[str, int],
        columns: StructType,
        unparsed: Unparsed,
    ) -> DataFrame:
        """Return a row for each file, marked as a record that does not parse."""
        assert unparsed.reason is not None
        files = sf.array(
            *[
                sf.struct(
                    sf.lit(f"{name} ({sizes[name]} bytes)").alias(unparsed.text),
                    sf.lit(self._place(name)).alias(unparsed.position),
                    sf.lit(f"{UNREAD}{why}").alias(unparsed.reason),
                )
                for name, why in reasons.items()
            ]
        )
        rows = spark.range(0, 1, 1, 1).select(sf.inline(files))
        nothing = [sf.lit(None).cast(field.dataType).alias(field.name) for field in columns]
        return rows.select(*nothing, *unparsed.columns)
