"""Session windows, and which rows belong together by the declaration alone.

Nothing is kept anew here: in each txid all rows that have ever come are put into sessions again, so
a row that the product forgets, or hands on twice, shows.
"""

from __future__ import annotations

from typing import Any

from tests.differential.declaration import Step
from tests.differential.values import group_key

__all__ = ["SESSION", "InSessions"]

Row = dict[str, Any]
SESSION = "session_window"


class InSessions:
    """All rows that a stream of session windows has had."""

    def __init__(self, step: Step) -> None:
        self._keys, self._time, self._gap = (step.args[n] for n in ("keys", "time", "gap"))
        self._rows: list[Row] = []
        self._before: int | None = None
        """The watermark of the txid before."""

    def rows(self, rows: list[Row], mark: int | None) -> list[Row]:
        """Return the rows of sessions that are over since a txid with this watermark.

        Args:
            rows: those of the txid.
        """
        self._rows += rows
        before, self._before = self._before, mark
        return [
            {**row, SESSION: (session[0][self._time], end)}
            for session in self._sessions()
            if mark is not None and (end := self._end(session)) <= mark
            if before is None or end > before
            for row in session
        ]

    def _sessions(self) -> list[list[Row]]:
        sessions: dict[Any, list[list[Row]]] = {}
        for row in sorted(self._rows, key=lambda row: row[self._time]):
            of_key = sessions.setdefault(tuple(group_key(row[name]) for name in self._keys), [])
            if not of_key or self._begins(row, of_key[-1]):
                of_key.append([])
            of_key[-1].append(row)
        return [session for of_key in sessions.values() for session in of_key]

    def _begins(self, row: Row, session: list[Row]) -> bool:
        """Tell whether a row is too late for a session; one exactly at its end belongs to it."""
        return bool(row[self._time] > self._end(session))

    def _end(self, session: list[Row]) -> int:
        return int(session[-1][self._time]) + int(self._gap)
