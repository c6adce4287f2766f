"""Writing what a program found into a document, between two marks."""

from __future__ import annotations

__all__ = ["pasted"]


def pasted(document: str, content: str, begin: str, end: str) -> str:
    """`document` with `content` between its two marks.

    Raises:
        ValueError: the marks are not there.
    """
    if document.count(begin) != 1 or document.count(end) != 1:
        raise ValueError(f"The document needs each of these lines once: {begin} and {end}")
    before, _, rest = document.partition(begin)
    after = rest.partition(end)[2]
    inner = content.strip("\n")  # spaces at its beginning may mean something
    return f"{before}{begin}\n\n{inner}\n\n{end}{after}"
