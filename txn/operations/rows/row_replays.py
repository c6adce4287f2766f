"""Put corrected rows that rules had set aside into their stream again, exactly once.

`export_rows` writes them into a file. `replay_rows` takes the corrected file, and

1. stages it under a hidden name in the source's folder,
2. writes into ZooKeeper for which rows it stands (`ProgressBackend.begin_row_replay`),
3. lets it appear under a name that its source has never seen, and so reads once,
4. notes in ZooKeeper that it has.

Killed anywhere, the same call completes it. Rows that were set aside after the export are left
alone: the caller gives the last txid of the file and the number of the replay, so that a file
from before another replay is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from txn.dataflow.expectations import Expectation, SetAside, tables_without
from txn.errors import UserError
from txn.interfaces import UNREAD, Inlet, Spout
from txn.interfaces.committer_capabilities import KeepsOwnLog
from txn.interfaces.publication import Member
from txn.interfaces.spout_capabilities import TakesCorrections
from txn.operations.rows.bad_rows import BadRow, BadRows, bad_rows_among, replayed_up_to
from txn.operations.table_logs import table_log
from txn.protocol.backend import ProgressBackend
from txn.protocol.records import CommittedRecord, RowReplayRecord
from txn.protocol.stream_names import rename_in_member, rename_in_status
from txn.topology import Topology

__all__ = ["Exported", "Replayed", "export_rows", "replay_rows"]

NUMBER = "TXN-516"


@dataclass(frozen=True)
class Exported:
    """A file of rows to be corrected."""

    topology: str
    stream: str
    rules: Mapping[str, int]
    """rule -> its rows in the file."""
    number: int
    """The number that the stream's replay of this file will have."""
    up_to: int
    """The last txid of the rows."""
    file: str
    foreign: bool
    """True: the columns differ from the source's, so the file to replay must have others."""
    unread: tuple[str, ...] = ()
    """Unreadable files: their records are not in this file; replay them as whole files."""


@dataclass(frozen=True)
class Replayed:
    """A file of corrected rows that is in its source's folder."""

    topology: str
    stream: str
    rules: Mapping[str, int]
    """rule -> the last txid of its rows that are replayed now."""
    number: int
    rows: int
    """The number of rows set aside that the file replaces, whatever it holds."""
    file: str
    """Its absolute path."""
    again: bool
    """True: it was there already, and nothing was changed."""


def export_rows(
    topology: Topology,
    backend: ProgressBackend,
    stream: str,
    path: Path,
    *,
    rule: str | None = None,
    up_to: int | None = None,
) -> Exported:
    """Write the rows of a stream that are set aside and not yet replayed into a new file.

    Args:
        rule: only those that broke this rule.
        up_to: only those of txids up to this one.

    Raises:
        UserError: no rows are open, the file exists, or the rows cannot be replayed; says what to
            do.
        TxnError: as `ProgressBackend.status`.
    """
    replayable = _Replayable.at(topology, backend, stream)
    rows = replayable.open_rows(replayable.ledger, rule, up_to)
    if not rows:
        raise replayable.nothing_left()
    logged = replayable.logged(rows)
    replayable.check_tables(rows, logged)
    raw, own, foreign = replayable.sorted_by_form(rows, logged)
    if foreign and (raw or own):
        raise UserError(
            f"Rows of rule '{foreign[0].rule}' have other columns than the source of stream "
            f"'{stream}', and those of rule '{(raw + own)[0].rule}' have its own: they do not fit "
            "into one file. Name one rule with --rule, and fewer txids with --up-to if its place "
            "has changed.",
            number=NUMBER,
        )
    counted = {name: sum(row.rule == name for row in rows) for name in _names(rows)}
    last = max(row.txid for row in rows)
    number = len(replayable.ledger) + 1
    if foreign:
        content = "".join(f"{row.row}\n" for row in foreign).encode()
    else:
        records = [row for row in raw if not row.reason.startswith(UNREAD)]
        texts = [replayable.inlet.raw(row.row, row.position) for row in records]
        try:
            content = replayable.inlet.content(texts, [row.row for row in own], replayable.position)
        except UserError as error:
            words = f" These rows are --number {number} --up-to {last} of it."
            raise UserError(str(error) + words, number=NUMBER) from error
    _write_new(path, content)
    unread = tuple(row.row for row in raw if row.reason.startswith(UNREAD))
    return Exported(topology.name, stream, counted, number, last, str(path), bool(foreign), unread)


def replay_rows(
    topology: Topology,
    backend: ProgressBackend,
    stream: str,
    path: Path,
    *,
    number: int,
    up_to: int,
    rule: str | None = None,
) -> Replayed:
    """Put a file of corrected rows where the stream's spout reads it once. Idempotent.

    Args:
        path: the file to read; it is not changed.
        number: the number of the stream's replay, as `export_rows` returned it.
        up_to: the file replaces the rows up to this txid, as `export_rows` returned it.
        rule: replace only the rows that broke this rule.

    Raises:
        UserError: nothing is left to replay, another file was replayed under this number, or the
            file cannot go in; says what to do.
        TxnError: as `ProgressBackend.status`.
    """
    replayable = _Replayable.at(topology, backend, stream)
    content = _read(path)
    digest = hashlib.sha256(content).hexdigest()
    replayable.check_number(number)
    rows = replayable.open_rows(replayable.ledger[: number - 1], rule, up_to)
    if not rows:
        raise replayable.nothing_left()
    earlier = replayable.ledger[number - 1] if number <= len(replayable.ledger) else None
    record = earlier or replayable.new_record(number, rows, digest)
    if earlier is None:
        replayable.check_new(record, rows, content)
    replayable.check_same(number, record, digest, rows)
    if not record.placed:
        replayable.check_taken(number, record)
        replayable.inlet.stage(record.file, content)
        begun = backend.begin_row_replay(topology.name, record)
        replayable.check_same(number, begun, digest, rows)
        replayable.inlet.put(begun.file, digest)
        backend.settle_row_replay(topology.name, begun)
    return Replayed(
        topology.name,
        stream,
        record.rules,
        number,
        record.rows,
        replayable.inlet.place(record.file),
        again=record.placed,
    )


@dataclass(frozen=True)
class _Replayable:
    """A stream, its rows that were set aside, and its replays so far."""

    topology: Topology
    stream: str
    was: str | None
    """The stream's former name."""
    inlet: Inlet
    bad_rows: BadRows
    committed: CommittedRecord
    ledger: tuple[RowReplayRecord, ...]
    """The replays so far, those under the former name first: number 1, 2, ... for the user."""

    @classmethod
    def at(cls, topology: Topology, backend: ProgressBackend, stream: str) -> _Replayable:
        """Read what is durable and open the table of bad rows."""
        inlet = _inlet(topology, stream)
        # The ledger first: the rows of its replays were committed before.
        replays = backend.row_replays(topology.name)
        was = next(source.was for source in topology.sources if source.name == stream)
        ledger = (*(replays.get(was, ()) if was else ()), *replays.get(stream, ()))
        status = rename_in_status(topology.definition.renamed, backend.status(topology.name))
        committed = status.progress.committed
        options = {
            sink.name: sink.committer.storage_options
            for sink in topology.sinks
            if not isinstance(sink.committer, KeepsOwnLog)
        }
        tables = [name for name in options if name in committed.tables]
        bad_rows = bad_rows_among(tables, options, committed.txid)
        if bad_rows is None:
            raise UserError(
                f"Topology '{topology.name}' has set no rows aside: it has published to no table "
                "of bad rows. There is nothing to export or replay.",
                number=NUMBER,
            )
        return cls(topology, stream, was, inlet, bad_rows, committed, ledger)

    @property
    def position(self) -> Any:
        """The newest metadata of the stream."""
        return self.committed.spouts.get(self.stream)

    def open_rows(
        self, before: Sequence[RowReplayRecord], rule: str | None, up_to: int | None
    ) -> list[BadRow]:
        """Return the rows up to a txid that no replay in `before` covers, the oldest first."""
        if up_to is not None and up_to > self.committed.txid:
            raise UserError(
                f"Txid {up_to} of topology '{self.topology.name}' is not committed: rows of txids "
                f"after {self.committed.txid} may still be taken back. Name a smaller --up-to.",
                number=NUMBER,
            )
        names = [name for name in (self.was, self.stream) if name is not None]
        after = replayed_up_to(before)
        rows = self.bad_rows.newest(None, stream=names, rule=rule, up_to=up_to)
        left = [
            replace(row, stream=self.stream)
            for row in rows
            if row.txid > max(after.get((name, row.rule), 0) for name in names)
        ]
        return sorted(left, key=lambda row: row.txid)

    def sorted_by_form(
        self, rows: Sequence[BadRow], logged: Mapping[int, Member]
    ) -> tuple[list[BadRow], list[BadRow], list[BadRow]]:
        """Return records as in the source, rows with its columns, and rows with other columns.

        As in `check_tables`, the row's own txid decides, or else the program of today.
        """
        today = {rule.name: rule.form for rule in self._rules()}
        by_form: dict[str, list[BadRow]] = {"raw": [], "own": [], "foreign": []}
        for row in rows:
            forms = logged[row.txid].forms if row.txid in logged else {}
            form = forms.get(self.stream, {}).get(row.rule) or today.get(row.rule, "foreign")
            by_form[form].append(row)
        return by_form["raw"], by_form["own"], by_form["foreign"]

    def logged(self, rows: Sequence[BadRow]) -> dict[int, Member]:
        """Return txid -> its entry in the log of the bad rows, while the log has it."""
        committers = {sink.name: sink.committer for sink in self.topology.sinks}
        log = table_log(self.bad_rows.table, committers.get(self.bad_rows.table))
        members = self.bad_rows.logged(self.topology.name, {row.txid for row in rows}, log)
        renamed = self.topology.definition.renamed
        return {txid: rename_in_member(renamed, member) for txid, member in members.items()}

    def new_record(self, number: int, rows: Sequence[BadRow], digest: str) -> RowReplayRecord:
        """Return the record of a new replay."""
        return RowReplayRecord(
            stream=self.stream,
            was=self.was,
            number=number - sum(replay.stream != self.stream for replay in self.ledger),
            rules=_last_txids(rows),
            first_txid=rows[0].txid,
            rows=len(rows),
            # With the digest: a name that was read once is never read again, whatever it holds.
            file=self.inlet.name(f"{self._stem(number)}{digest[:8]}"),
            sha256=digest,
        )

    def check_number(self, number: int) -> None:
        """Refuse a number that is neither the next one nor an earlier replay's."""
        there = len(self.ledger)
        if number > there + 1:
            raise UserError(
                f"The next replay of stream '{self.stream}' is number {there + 1}, not {number}. "
                "Use the number that `txn rows export` has printed for this file.",
                number=NUMBER,
            )
        if number == there + 1 and self.ledger and not self.ledger[-1].placed:
            half = self.ledger[-1]
            raise UserError(
                f"Replay {there} of stream '{self.stream}' is half done: "
                f"'{self.inlet.place(half.file)}' may be missing. {self._way_out(half)}",
                number=NUMBER,
            )

    def check_same(
        self, number: int, record: RowReplayRecord, digest: str, rows: Sequence[BadRow]
    ) -> None:
        """Refuse to repeat a replay with another file or other rows."""
        if record.sha256 == digest and record.rules == _last_txids(rows):
            return
        what = "other content" if record.sha256 != digest else "other rules or txids"
        if record.placed:
            out = (
                "Nothing was changed. Run `txn rows export` again: it has the rows that are still "
                "open."
            )
        else:
            out = self._way_out(record)
        raise UserError(
            f"Replay {number} of stream '{self.stream}' was begun with {what} "
            f"({record.rows} rows, {_newest_by_rule(record.rules)}). {out}",
            number=NUMBER,
        )

    def check_new(self, record: RowReplayRecord, rows: Sequence[BadRow], content: bytes) -> None:
        """Refuse a file that could not be read exactly once."""
        self.check_tables(rows, self.logged(rows))
        self.inlet.check(content, self.position)
        place = self.inlet.place(record.file)
        for source in self.topology.sources:
            other = _inlet_of(source.spout)
            if source.name != self.stream and other is not None and other.takes(place):
                raise UserError(
                    f"Stream '{source.name}' would read '{place}' as well, and have its rows "
                    "twice. Give the two streams folders of their own.",
                    number=NUMBER,
                )
        files = {replay.file for replay in self.ledger}
        strange = [name for name in self.inlet.names(self._stem(None)) if name not in files]
        if strange:
            raise UserError(
                f"'{self.inlet.place(strange[0])}' looks like the file of a replay, and ZooKeeper "
                "knows of none with it: its data was lost, or is another's. Its rows are in the "
                "tables. Take them out of your file, move that file to another folder, and run "
                "this again.",
                number=NUMBER,
            )

    def check_tables(self, rows: Sequence[BadRow], logged: Mapping[int, Member]) -> None:
        """Refuse rows that a table has although they were set aside: their rule did not guard it.

        The row's own txid decides which tables the rule guarded. Where the log of the bad rows
        does not record it (it was cleaned up), the program of today decides.
        """
        rules = self._rules()
        today = tables_without(rules, self.topology.sinks).get(self.stream, {})
        takers = {
            sink.name
            for sink in self.topology.sinks
            if not isinstance(sink.parent, SetAside)
            and any(source.name == self.stream for source in sink.parent.sources())
        }
        for row in rows:
            unasked = logged[row.txid].unasked if row.txid in logged else {}
            tables = unasked.get(self.stream, {}).get(row.rule)
            if tables is None:
                tables = today.get(row.rule)
            if tables is None:
                raise UserError(
                    f"The program has no rule '{row.rule}' of stream '{self.stream}' any more, and "
                    f"the log of table '{self.bad_rows.table}' does not say which tables it stood "
                    f"before in txid {row.txid}: some may have its rows already. Put the rule back "
                    "where it stood, run this again, and take it out after that.",
                    number=NUMBER,
                )
            for table in tables:
                if table in takers:
                    raise self._has_them(table, row)

    def _has_them(self, table: str, row: BadRow) -> UserError:
        return UserError(
            f"Table '{table}' takes rows of stream '{self.stream}' that in txid {row.txid} were "
            f"not asked about rule '{row.rule}', so it may have these rows already, and would have "
            "them twice. Rows can be replayed if their rule stood before all tables of the stream. "
            "Name another rule with --rule, or older rows with --up-to. If the table has none of "
            "them, move the corrected file into the spout's folder yourself, under a new name.",
            number=NUMBER,
        )

    def check_taken(self, number: int, record: RowReplayRecord) -> None:
        """Refuse to complete a replay whose file the spout would no longer read."""
        place = self.inlet.place(record.file)
        if not self.inlet.takes(place):
            raise UserError(
                f"Replay {number} of stream '{self.stream}' was to put '{place}' there, "
                "which the spout's pattern does not match any more. Complete it with the former "
                "pattern.",
                number=NUMBER,
            )

    def nothing_left(self) -> UserError:
        """Return the error for a stream without open rows."""
        done = f"; replays so far: {len(self.ledger)}" if self.ledger else ""
        return UserError(
            f"No rows of stream '{self.stream}' are set aside and not yet replayed, within these "
            f"rules and txids{done}. `txn rows list` shows what there is.",
            number=NUMBER,
        )

    def _rules(self) -> list[Expectation]:
        rules = self.topology.definition.rules
        return [rule for rule in rules if rule.label() == self.stream]

    def _stem(self, number: int | None) -> str:
        stream = re.sub(r"[^A-Za-z0-9_]", "_", self.stream)
        return f"txn-rows-{stream}-" + (f"{number:04d}-" if number else "")

    def _way_out(self, half: RowReplayRecord) -> str:
        return (
            f"Complete it first: run it again as it was, with the file of that time (a copy is "
            f"'{self.inlet.staged(half.file)}')."
        )


def _inlet(topology: Topology, stream: str) -> Inlet:
    sources = {source.name: source for source in topology.sources}
    if stream not in sources:
        several = "+" in stream and set(stream.split("+")) <= sources.keys()
        raise UserError(
            f"Rows of '{stream}' came from several streams, so no file of one of them can bring "
            "them again. Put corrected records into the sources yourself."
            if several
            else f"Topology '{topology.name}' has no stream '{stream}'. It has: "
            f"{', '.join(sources)}.",
            number=NUMBER,
        )
    spout = sources[stream].spout
    inlet = _inlet_of(spout)
    if inlet is None:
        raise UserError(
            f"Stream '{stream}' is read by a {type(spout).__name__}, which takes no files: rows "
            "are exported and replayed for a FileSpout or KafkaSpout only. Take the rows from `txn "
            "rows show --json` and put the corrected records into the source yourself: append them "
            "to the table of a DeltaSpout.",
            number=NUMBER,
        )
    return inlet


def _inlet_of(spout: Spout[Any]) -> Inlet | None:
    return spout.inlet() if isinstance(spout, TakesCorrections) else None


def _names(rows: Sequence[BadRow]) -> list[str]:
    return sorted({row.rule for row in rows})


def _last_txids(rows: Sequence[BadRow]) -> dict[str, int]:
    return {name: max(row.txid for row in rows if row.rule == name) for name in _names(rows)}


def _newest_by_rule(rules: Mapping[str, int]) -> str:
    return ", ".join(f"rule '{rule}' up to txid {txid}" for rule, txid in rules.items())


def _write_new(path: Path, content: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError as error:
        raise UserError(
            f"There is a file '{path}' already, and it is not overwritten. Name a new one.",
            number=NUMBER,
        ) from error
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise UserError(
            f"The rows cannot be written to '{path}': {getattr(error, 'strerror', None) or error}. "
            "Name another file.",
            number=NUMBER,
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(
            f"The file '{path}' cannot be read: {getattr(error, 'strerror', None) or error}. "
            "Check the path.",
            number=NUMBER,
        ) from error
