"""The size of a batch: a fixed number, or one between two caps that follows the batch target."""

from __future__ import annotations

from collections.abc import Sequence

from txn.errors import TopologyError

__all__ = ["BatchSize", "Size"]

Size = int | tuple[int, int]
"""A user's setting: a cap, or a range (least, most)."""


class BatchSize:
    """A cap of one batch.

    Args:
        size: a number, or (least, most): `least` while the topology is caught up, up to `most`
            while it is behind.
        setting: the argument's name, for messages.

    Raises:
        TopologyError: a number below 1, or an invalid range.
    """

    def __init__(self, size: Size, spout: str, setting: str) -> None:
        if isinstance(size, tuple | list):
            if not _is_range(size):
                raise TopologyError(
                    f"{spout} was given {setting}={size!r}. A range is (least, most), two whole "
                    "numbers from 1 on, the smaller one first.",
                    number="TXN-415",
                )
            self._least, self._most = size
        else:
            if not _is_count(size):
                raise TopologyError(
                    f"{spout} needs {setting} of 1 or more, not {size!r}; or a range (least, "
                    "most).",
                    number="TXN-415",
                )
            self._least = self._most = size
        self._share = 0.0

    @property
    def now(self) -> int:
        """The cap of the next batch."""
        return self._least + round(self._share * (self._most - self._least))

    def in_words(self, unit: str, limit: str = "") -> str:
        """For example "1 file, up to 20 while it is behind".

        Args:
            limit: what else limits a larger batch, such as " and 256 MB".
        """
        least = f"{self._least:,} {unit}{'s' if self._least > 1 else ''}"
        more = self._most > self._least
        return f"{least}, up to {self._most:,}{limit} while it is behind" if more else least

    def set_target(self, share: float) -> None:
        """Move between the caps; see `SizesBatches.set_batch_target`."""
        self._share = share


def _is_range(numbers: Sequence[int]) -> bool:
    return len(numbers) == 2 and all(map(_is_count, numbers)) and numbers[0] <= numbers[1]


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1
