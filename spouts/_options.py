"""Options of Spark's readers. Spark passes over a name that it does not know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from txn.errors import TopologyError

__all__ = ["check_options", "encoding_of", "is_known", "is_set", "lowered"]

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
"""Format -> the names of Spark 3.5 to 4.2; upper and lower case are one."""


def is_known(form: str, name: str) -> bool:
    """Whether Spark's reader of the format has an option of that name, in whatever case."""
    return name.lower() in {known.lower() for known in _KNOWN[form]}


def lowered(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their names in small letters: upper and lower case are one."""
    return {name.lower(): value for name, value in options.items()}


def is_set(options: Mapping[str, Any], name: str) -> bool:
    """Whether an option is given and true. The name in small letters."""
    return str(lowered(options).get(name, False)).lower() == "true"


def encoding_of(options: Mapping[str, Any]) -> str | None:
    """The encoding that options of Spark's reader name, by either name; None: they name none."""
    given = lowered(options)
    found = given.get("encoding", given.get("charset"))
    return None if found is None else str(found)


def check_options(form: str, given: Iterable[str], whose: str, extra: str = "") -> None:
    """Refuse options that Spark's reader of the format does not know.

    Args:
        extra: for the message: where those belong that others know.

    Raises:
        TopologyError: naming the options that come near.
    """
    known = {name.lower(): name for name in _KNOWN[form]}
    for name in given:
        if name.lower() in known:
            continue
        near = [known[found] for found in get_close_matches(name.lower(), known, cutoff=0.6)]
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        raise TopologyError(
            f"{whose} has an option {name}, which Spark's reader of {form} does not know and "
            f"would pass over. {meant}Correct it, or leave it out. {extra}".rstrip(),
            number="TXN-408",
        )
