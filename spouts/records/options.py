"""Check options of Spark's readers. Spark itself ignores unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from txn.errors import TopologyError
from txn.spark.differences import option_is_new_in
from txn.spark.versions import pyspark_version

__all__ = ["check_options", "encoding_of", "is_known", "is_set", "lowered", "overlaid"]

_FILES = {
    "basePath", "codec", "compression", "ignoreCorruptFiles", "ignoreMissingFiles", "modifiedAfter",
    "modifiedBefore", "pathGlobFilter", "recursiveFileLookup", "timeZone",
}  # fmt: skip
_PARSED = _FILES | {
    "charset", "columnNameOfCorruptRecord", "dateFormat", "enableDateTimeParsingFallback",
    "encoding", "inferSchema", "lineSep", "locale", "mode", "multiLine", "samplingRatio",
    "singleVariantColumn", "timeFormat", "timestampFormat", "timestampNTZFormat",
}  # fmt: skip
_KNOWN = {
    "csv": _PARSED | {
        "charToEscapeQuoteEscaping", "columnPruning", "comment", "delimiter", "emptyValue",
        "enforceSchema", "escape", "escapeQuotes", "extension", "header",
        "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "inputBufferSize",
        "maxCharsPerColumn", "maxColumns", "nanValue", "negativeInf", "nullValue", "positiveInf",
        "preferDate", "quote", "quoteAll", "sep", "unescapedQuoteHandling",
    },
    "json": _PARSED | {
        "allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers",
        "allowNumericLeadingZeros", "allowSingleQuotes", "allowUnquotedControlChars",
        "allowUnquotedFieldNames", "dropFieldIfAllNull", "ignoreNullFields", "inferTimestamp",
        "maxNestingDepth", "maxNumLen", "maxStringLen", "prefersDecimal", "pretty",
        "primitivesAsString", "sortKeys", "useUnsafeRow", "writeNonAsciiCharacterAsCodePoint",
    },
    "parquet": _FILES | {
        "datetimeRebaseMode", "int96RebaseMode", "mergeSchema", "parquet.compression",
    },
    "text": _FILES | {"charset", "encoding", "lineSep", "wholetext"},
}  # fmt: skip
"""Format -> the names in Spark 3.5 to 4.2; upper and lower case are one."""


def is_known(form: str, name: str) -> bool:
    """Return True if Spark's reader of the format has an option of that name, in any case."""
    return name.lower() in {option.lower() for option in _KNOWN[form]}


def lowered(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with names in small letters: upper and lower case are one."""
    return {name.lower(): value for name, value in options.items()}


def overlaid(options: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` with `others` in the place of those that differ from them in case only."""
    replaced = lowered(others)
    rest = {name: value for name, value in options.items() if name.lower() not in replaced}
    return {**rest, **others}


def is_set(options: Mapping[str, Any], name: str) -> bool:
    """Return True if an option, named in small letters, is given and true."""
    return str(lowered(options).get(name, False)).lower() == "true"


def encoding_of(options: Mapping[str, Any]) -> str | None:
    """Return the encoding in options of Spark's reader, by either name; None: not given."""
    by_name = lowered(options)
    encoding = by_name.get("encoding", by_name.get("charset"))
    return None if encoding is None else str(encoding)


def check_options(form: str, options: Iterable[str], spout: str, extra: str = "") -> None:
    """Refuse options that Spark's reader of the format does not know.

    Args:
        extra: advice for the message: the place for options of other libraries.

    Raises:
        TopologyError: an unknown option; names the closest ones. Or one of a newer Spark.
    """
    names = {name.lower(): name for name in _KNOWN[form]}
    for name in options:
        if name.lower() in names:
            _refuse_newer(name, spout)
            continue
        near = [names[match] for match in get_close_matches(name.lower(), names, cutoff=0.6)]
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        raise TopologyError(
            f"{spout} has an option {name}, which Spark's reader of {form} does not know and "
            f"would pass over. {meant}Correct it, or leave it out. {extra}".rstrip(),
            number="TXN-408",
        )


def _refuse_newer(name: str, spout: str) -> None:
    if version := option_is_new_in(name):
        raise TopologyError(
            f"{spout} has an option {name}, which is new in Spark {version}: Spark "
            f"{pyspark_version()} would pass over it. Leave it out, or use Spark {version}.",
            number="TXN-408",
        )
