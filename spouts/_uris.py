"""URIs in the spellings of Spark and Hadoop."""

from __future__ import annotations

import re

__all__ = ["literal", "plain"]


def literal(uri: str) -> str:
    """Escape a path, because Spark reads every path as a pattern.

    (Its switch `__globPaths__` reads all paths of a list once more for each odd one, as of 4.2.)
    """
    return re.sub(r"([*?{}\[\]\\])", r"\\\1", uri)


def plain(uri: str) -> str:
    """Return a local file's URI in one spelling: Spark writes file:///x, Hadoop file:/x."""
    return "/" + uri[5:].lstrip("/") if uri.startswith("file:") else uri
