"""A source that takes further files of records: where corrected rows go in again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

__all__ = ["Inlet"]


class Inlet(ABC):
    """Where a source takes a further file of records and reads it once: `txn rows replay` uses it.

    No method needs Spark, and each may raise UserError with the way out.
    """

    @abstractmethod
    def content(self, raw: Sequence[str], rows: Sequence[str], position: Any) -> bytes:
        """A file with these records, as the source has them.

        Args:
            raw: records as they stood in the source, as the method `raw` returns them.
            rows: records as JSON objects, with the source's columns in their order.
            position: the stream's newest committed metadata, as JSON.
        """

    def raw(self, text: str, position: str | None) -> str:
        """A record that does not parse as `content` takes it: its own text, if not said otherwise.

        Args:
            position: where it stood in the source, as the table of bad rows has it.
        """
        return text

    @abstractmethod
    def check(self, content: bytes, position: Any) -> None:
        """Refuse a file that would fail its whole batch. `position` as for `content`."""

    @abstractmethod
    def name(self, stem: str) -> str:
        """The name of a new file that the source reads, made from `stem`."""

    @abstractmethod
    def takes(self, place: str) -> bool:
        """Whether this source would read a file at `place`, as another inlet's `place` has it."""

    @abstractmethod
    def place(self, name: str) -> str:
        """Where the file of that name lies, for people: an absolute path."""

    @abstractmethod
    def names(self, start: str) -> list[str]:
        """Those of the source's files whose last part begins with `start`."""

    @abstractmethod
    def stage(self, name: str, content: bytes) -> None:
        """Store the content durably at `staged(name)`."""

    @abstractmethod
    def staged(self, name: str) -> str:
        """Where the content waits, and nobody reads it, until it is put: an absolute path."""

    @abstractmethod
    def put(self, name: str, sha256: str) -> None:
        """Let the staged content appear under its name, whole and durable. Twice is once.

        Raises:
            UserError: another file has the name.
        """
