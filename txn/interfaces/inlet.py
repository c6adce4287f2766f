"""The contract of a source that takes more files of records, such as corrected rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

__all__ = ["Inlet"]


class Inlet(ABC):
    """The entry of a source for one more file, which it reads once; for `txn rows replay`.

    No method needs Spark. Each may raise UserError with the way out.
    """

    @abstractmethod
    def content(self, raw: Sequence[str], rows: Sequence[str], position: Any) -> bytes:
        """A file with these records, in the source's format.

        Args:
            raw: records in their own text, as the method `raw` returns them.
            rows: records as JSON objects, with the source's columns in their order.
            position: the stream's newest committed metadata, as JSON.
        """

    def raw(self, text: str, position: str | None) -> str:
        """A record that does not parse, in the form for `content`; by default its own text.

        Args:
            position: its position in the source, from the table of bad rows.
        """
        return text

    @abstractmethod
    def check(self, content: bytes, position: Any) -> None:
        """Refuse a file that would fail its whole batch. `position` is that of `content`."""

    @abstractmethod
    def name(self, stem: str) -> str:
        """The name of a new file that the source reads, made from `stem`."""

    @abstractmethod
    def takes(self, place: str) -> bool:
        """Return whether this source would read a file at `place`, a path from another inlet."""

    @abstractmethod
    def place(self, name: str) -> str:
        """The absolute path of the file with that name, for users."""

    @abstractmethod
    def names(self, start: str) -> list[str]:
        """The source's files whose last part begins with `start`."""

    @abstractmethod
    def stage(self, name: str, content: bytes) -> None:
        """Store the content durably at `staged(name)`."""

    @abstractmethod
    def staged(self, name: str) -> str:
        """The absolute path of staged content, which the source does not read until `put`."""

    @abstractmethod
    def put(self, name: str, sha256: str) -> None:
        """Move the staged content to its name, whole and durable. A repeated call changes nothing.

        Raises:
            UserError: another file has the name.
        """
