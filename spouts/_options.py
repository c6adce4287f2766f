"""Options of Spark's readers. Spark passes over a name that it does not know."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from txn.errors import TopologyError

__all__ = ["check_options"]

_FILES = {
    "basePath", "compression", "ignoreCorruptFiles", "ignoreMissingFiles", "modifiedAfter",
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
        "allowUnquotedFieldNames", "dropFieldIfAllNull", "ignoreNullFields", "maxNestingDepth",
        "maxNumLen", "maxStringLen", "prefersDecimal", "primitivesAsString",
    },
    "parquet": _FILES | {"datetimeRebaseMode", "int96RebaseMode", "mergeSchema"},
    "text": _FILES | {"charset", "encoding", "lineSep", "wholetext"},
}  # fmt: skip
"""Format -> the names of Spark 3.5 to 4.2; upper and lower case are one."""


def check_options(form: str, given: Iterable[str], whose: str) -> None:
    """Refuse an option that is misspelt. One that is like no other may be a codec's: it passes.

    Raises:
        TopologyError: naming the option that is nearest.
    """
    known = {name.lower(): name for name in _KNOWN[form]}
    for name in given:
        near = get_close_matches(name.lower(), known, n=1, cutoff=0.8)
        if near and near[0] != name.lower():
            raise TopologyError(
                f"{whose} has an option {name}, which Spark's reader of {form} does not know and "
                f"would pass over. Did you mean {known[near[0]]}? Correct it, or leave it out.",
                number="TXN-408",
            )
