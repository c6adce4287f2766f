"""The books: what every run must keep, told from what landed, by other means than the product.

They see each transaction of ZooKeeper and each version of each table as it comes to be, read the
raw JSON, and know the records behind each metadata. Of the product they believe only what it made
durable. The invariants are listed in docs/simulation.md; each failure names one of them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.delta import Table
from tests.simulation.kernel import Process
from tests.simulation.plan import TableKind, owner_of
from tests.simulation.rows import STREAM_SIZE, event_time_of
from tests.simulation.sources import records_of
from tests.simulation.states import States
from tests.simulation.tables import shape_of
from tests.simulation.world import World
from txn.attempts import TransactionAttempt

if TYPE_CHECKING:
    from tests.simulation.zookeeper import Op

__all__ = ["Books"]

ROOT = "/txn/sim"


@dataclass
class Ledger:
    """What one table must hold, by what its versions say of themselves."""

    epoch: int = 0
    txids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """txid -> records."""
    attempts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """txid -> (attempt id, epoch) of its newest publication."""
    versions: dict[int, int] = field(default_factory=dict)
    """Version -> newest txid that it holds."""
    rows: dict[int, list[Any]] = field(default_factory=dict)
    """txid -> its rows, of a table that is fed by a join, a query or new values."""
    last: int = 0
    releases: set[int] = field(default_factory=set)
    """The programs that have filled a late table or a next generation."""
    lacks: bool = False
    """Its newest publication lost a file on its way."""
    brought: bool = False
    """Its newest publication has rows."""


class Books:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.epoch = 0
        self.committed = 0
        self.seen: set[int] = set()
        """Records of committed txids."""
        self.set_aside: dict[int, dict[str, Any]] = {}
        self.given_up: set[int] = set()
        """The quarantined txids that the operator drops."""
        self.dropped: set[int] = set()
        """Their records, once a txid that reads nothing stands for them."""
        """Quarantined txid -> what it was to read."""
        self.by_txid: dict[int, tuple[int, ...]] = {}
        self.starts: dict[tuple[int, int, int], dict[str, Any]] = {}
        self.watermarks: dict[int, int | None] = {}
        """txid -> the watermark of its first START."""
        self.states = States(world, self)
        self.newest: dict[int, dict[str, Any]] = {}
        """txid -> its newest START, as stored."""
        self.ledgers: dict[str, Ledger] = {}
        self.versions: dict[str, int] = {}
        """Table -> the version that COMMITTED names."""
        self.backup: dict[str, bytes] | None = None
        """ZooKeeper's nodes as they were at some time since the newest commit."""
        self.was_restored = False
        self._in_backup: dict[int, dict[str, Any]] = {}
        self.final: dict[int, set[int]] = {}
        """Committed txid -> its attempts that the tables hold: transactional ones may differ."""
        self.damaged: str | None = None
        self._struck: dict[Process, set[str]] = {}

    # --- releases of the program -------------------------------------------------------------

    def has_shape(self, name: str, release: int) -> bool:
        """Whether a table has its shape in a release of the program."""
        table, expected = self._world.tables[name], shape_of(self._world, name, release)
        assert table.metadata is not None
        properties = table.metadata.configuration
        columns = [
            (field["name"], field["type"]) for field in json.loads(table.schema.to_json())["fields"]
        ]
        return (
            columns == [*expected["columns"]]
            and json.loads(properties["txn.keys"]) == [*expected.get("keys", ())]
            and properties["txn.buckets"] == str(expected.get("buckets", 0))
        )

    def knows_release(self) -> bool:
        """Whether something durable is of the second program alone."""
        tables, node = self._world.plan.tables, self._world.ensemble.nodes.get(f"{ROOT}/program")
        named = {*self.versions, *(json.loads(node.data)["filled"] if node else ())}
        return any(
            name in named if tables[name].since else not self.has_shape(name, 0)
            for name in (table.name for table in self._world.own_tables())
        )

    def is_released(self) -> bool:
        """Whether all tables have the shape of the newest program."""
        return all(
            self.has_shape(name, 1) and (self.ledgers[name].last >= self.committed)
            for name in (table.name for table in self._world.own_tables())
        )

    def is_stale(self, name: str, release: int) -> bool:
        """Whether a program that needs another shape has filled a next generation."""
        releases = self.ledgers[name].releases if name in self.ledgers else ()
        own = shape_of(self._world, name, release)
        others = any(shape_of(self._world, name, other) != own for other in releases)
        return others or not self.has_shape(name, release)

    def vanishes(self, table: Table) -> None:
        """The log of a next generation is deleted."""
        self._world.trace(f"{table.name} is gone")
        table.vanish()
        self.ledgers.pop(table.name, None)

    def _refilled(self) -> frozenset[str]:
        release = self._world.plan.release
        return frozenset() if release is None else release.refilled

    def _is_late(self, name: str) -> bool:
        """Whether the committed txids are not all in a table yet, which may be right."""
        plan = self._world.plan
        may = plan.kind(name).since or owner_of(name) != name
        return bool(may or name in self._refilled()) and name not in self.versions

    def _count(self, what: str) -> None:
        self._world.counts[what] += 1
        self._world.trace(f"RARE {what}")

    def _must(self, holds: bool, message: str) -> None:
        if not holds:
            self._world.kernel.fail(message)

    def struck(self, fault: str, process: Process) -> None:
        self._struck.setdefault(process, set()).add(fault)

    def has_struck(self, fault: str, process: Process) -> bool:
        return fault in self._struck.get(process, ())

    def records(self, read: dict[str, Any]) -> tuple[int, ...]:
        found: list[int] = []
        for stream, metadata in read.items():
            if metadata is not None:
                found += records_of(int(stream[1:]), metadata)
        return tuple(sorted(found))

    def _records_of_start(self, start: dict[str, Any]) -> tuple[int, ...]:
        return () if start["quarantined"] is not None else self.records(start["spouts"])

    # --- ZooKeeper ---------------------------------------------------------------------------

    def zookeeper_multi(self, process: Process, ops: list[Op], *, done: bool) -> None:
        """A multi has arrived; `done`: it was carried out."""
        world = self._world
        if not done:
            world.trace(f"zk refused to {process}: {[f'{op.kind} {op.path}' for op in ops]}")
            if process.epoch and process.epoch < self.epoch:
                self._count("write of a fenced leader refused by ZooKeeper")
            if process.dead:
                self._count("write of a dead process refused by ZooKeeper")
            return
        if world.lines is not None and len(ops) > 1:
            world.trace(f"zk done for {process}: {[f'{op.kind} {op.path}' for op in ops]}")
        if process.dead and len(ops) > 1:
            self._count("write of a dead process landed in ZooKeeper")
        takes = any(op.path == f"{ROOT}/epoch" and op.kind == "set" for op in ops)
        if takes:
            self._leads(process, ops)
        writes = [op for op in ops if op.kind != "check" and op.path.startswith(f"{ROOT}/")]
        writes = [op for op in writes if not op.path.startswith(f"{ROOT}/standbys")]
        if any(op.path == f"{ROOT}/format" for op in writes):
            return  # the topology is made
        if not takes and writes and process.epoch:
            self._check_writer(process, writes)
        for op in writes:
            self._written(op, process)
        if self.backup is None and self.newest and not self.damaged and world.random.random() < 0.3:
            self.backup = {path: node.data for path, node in world.ensemble.nodes.items()}
            self._in_backup = dict(self.newest)

    def restored(self) -> None:
        """ZooKeeper is as it was at the backup: what was started since, nobody knows there."""
        self.newest = dict(self._in_backup)
        self.was_restored = True
        for ledger in self.ledgers.values():
            self._forget_attempts(ledger)

    def _forget_attempts(self, ledger: Ledger) -> None:
        """How often a txid was tried, after ZooKeeper's loss only what a table holds can say."""
        ledger.attempts = {t: a for t, a in ledger.attempts.items() if t in ledger.txids}

    def _check_writer(self, process: Process, writes: list[Op]) -> None:
        where = writes[0].path
        self._must(
            process.epoch >= self.epoch,
            f"fencing: {process} of epoch {process.epoch} wrote {where} to ZooKeeper, "
            f"which is led in epoch {self.epoch}",
        )
        kept = (f"{ROOT}/committed", f"{ROOT}/batches/", f"{ROOT}/quarantine/", f"{ROOT}/parts/")
        state = [op for op in writes if op.path.startswith(kept)]
        self._must(
            self.damaged is None or process.dead or not state,
            f"unreadable is refused: {process} wrote {where} to ZooKeeper, where "
            f"{self.damaged} is damaged",
        )

    def _written(self, op: Op, process: Process) -> None:
        in_quarantine = op.path.startswith(f"{ROOT}/quarantine/")
        if op.kind == "delete":
            if in_quarantine:
                self._replayed(int(op.path.rsplit("/", 1)[1]))
        elif op.path.startswith(f"{ROOT}/batches/"):
            self._started(json.loads(op.data))
        elif op.path == f"{ROOT}/committed":
            self._committed(json.loads(op.data), process)
        elif in_quarantine:
            record = json.loads(op.data)
            self._count("txid quarantined")
            self.set_aside[record["txid"]] = record["spouts"]

    def _leads(self, process: Process, ops: list[Op]) -> None:
        data = next(json.loads(op.data) for op in ops if op.path == f"{ROOT}/epoch")
        epoch = data["epoch"]
        self._must(epoch > self.epoch, f"epochs rise: {epoch} after {self.epoch}")
        self.epoch = epoch
        process.epoch = epoch
        for other in self._world.kernel.processes:
            if other is process or not other.epoch:
                continue
            struck = self._struck.get(other, set())
            # What it has read says how it may end, whoever leads by then.
            self._struck[other] = struck & {"stale listing"}
            for fault in ("zk answer lost", "zk write late", "append answer lost", "append late"):
                if fault in struck:
                    self._count(f"{fault}, then a takeover")
            if not other.dead:
                self._count("two leaders at once")
        self._world.trace(f"{process} leads in epoch {epoch}")

    def _started(self, record: dict[str, Any]) -> None:
        txid, attempt, epoch = record["txid"], record["attempt"], record["epoch"]
        before = self.newest.get(txid)
        self._must(
            txid > self.committed,
            f"START of txid {txid}, and {self.committed} is committed",
        )
        self._must(
            before is None or attempt > before["attempt"],
            f"attempts never go back: START {txid}:{attempt} after {before and before['attempt']}",
        )
        self._must(
            txid == self.committed + 1 or txid - 1 in self.newest,
            f"contiguous: START of txid {txid} before that of {txid - 1}",
        )
        self._check_watermark(record)
        self.newest[txid] = record
        self.starts[txid, attempt, epoch] = record
        self._world.trace(f"START {txid}:{attempt} epoch {epoch} {record['spouts']}")
        if before is not None and before["epoch"] != epoch:
            self._count("open txid started again by another leader")

    def _check_watermark(self, record: dict[str, Any]) -> None:
        txid, found = record["txid"], record["watermark"]
        known = self.watermarks.setdefault(txid, found)
        self._must(
            found == known, f"one watermark: START {txid} has {found}, and an earlier one {known}"
        )
        follows = self._watermark(txid)
        self._must(
            found == follows,
            f"watermark: START {txid} has {found}, and {follows} follows from the records of the "
            f"txids up to {txid - self._world.plan.config.max_spout_pending}",
        )

    def _watermark(self, txid: int) -> int | None:
        """The watermark that follows from the records of committed txids."""
        plan = self._world.plan
        newest: dict[int, tuple[int, int]] = {}
        watermark: int | None = None
        streams = plan.timed_streams(int(self.knows_release()))
        last = min(self.committed, txid - plan.config.max_spout_pending)
        for before in range(1, last + 1 if plan.timed else 0):
            for record in self.by_txid[before]:
                stream = record // STREAM_SIZE
                at = max(event_time_of(record), newest.get(stream, (-(10**9), 0))[0])
                newest[stream] = at, before
            idle = plan.timed.idle_after if plan.timed else None
            newest = {s: e for s, e in newest.items() if idle is None or before - e[1] < idle}
            seen = [newest.get(stream, (None, 0)) for stream in streams]
            awake = [at for at, since in seen if idle is None or before - since < idle]
            if awake and None not in awake:
                follows = min(at for at in awake if at is not None) - plan.timed.delay
                watermark = follows if watermark is None else max(watermark, follows)
        return watermark

    def _committed(self, record: dict[str, Any], process: Process) -> None:
        txid, before = record["txid"], self.committed
        is_own = any(
            ledger.attempts.get(txid, (0, 0))[1] == process.epoch
            for ledger in self.ledgers.values()
        )
        for name in record["tables"] if is_own else ():
            # Without rows the columns need not be known yet, and with them the shape.
            brought = name in self.ledgers and self.ledgers[name].brought
            self._must(
                not brought or self.has_shape(name, process.release),
                f"changed before: {process} commits txid {txid}, and table {name} has not the "
                f"shape of its program",
            )
        # One that seemed late, by a listing that is too old, is filled before it is named again.
        seems_late = self._refilled() if self.has_struck("stale listing", process) else ()
        self._must(
            all(name in record["tables"] for name in self.versions if name not in seems_late),
            f"no table is left out: {process} commits txid {txid} with {record['tables']}",
        )
        self._world.trace(f"COMMITTED {txid} {record['tables']}")
        self._must(txid > before, f"committed rises: {txid} after {before}")
        for one in range(before + 1, txid + 1):
            self._commit(one, record, process.release if is_own else 0)
        for name, version in record["tables"].items():
            held = self.ledgers[name].versions.get(version, 0) if name in self.ledgers else 0
            self._must(
                held >= txid,
                f"never ahead of a table: COMMITTED {txid} names version {version} of {name}, "
                f"which holds {held}",
            )
        for name in record["tables"]:
            self._must(
                name not in self.ledgers or not self.ledgers[name].lacks,
                f"never ahead of a table: COMMITTED {txid}, and table {name} lacks a file of it",
            )
            differs = self._differing(name)
            self._must(
                not differs,
                f"a late table has every txid once: COMMITTED {txid} names {name}, and txids "
                f"{differs} have other records there",
            )
        self.committed = txid
        self.versions = dict(record["tables"])
        self.backup = None
        if txid - before > 1:
            self._count("group committed")
        for one in range(before + 1, txid + 1):
            self.newest.pop(one, None)
        self._world.committed()

    def _differing(self, name: str) -> list[int]:
        """The committed txids of which a late table has other records than were committed."""
        kind, held = self._world.plan.tables[name], self.ledgers[name].txids
        is_newly_named = kind.feed == "rows" and name not in self.versions
        return [
            txid
            for txid, records in (self.by_txid.items() if kind.since or is_newly_named else ())
            for stream in kind.streams
            if _of_stream(held.get(txid, ()), stream) != _of_stream(records, stream)
        ]

    def is_late_unnamed(self) -> bool:
        """Whether a late table has versions, and COMMITTED does not name it yet."""
        return any(self._is_late(table.name) for table in self._world.own_tables())

    def _commit(self, txid: int, record: dict[str, Any], release: int) -> None:
        """One txid becomes committed: every table has it, from the same attempt's metadata."""
        # ZooKeeper's own may be gone since it was restored; then the tables' logs have told it.
        known = [start for (t, _, _), start in self.starts.items() if t == txid]
        start = self.newest.get(txid) or (known[-1] if known and self.was_restored else None)
        if start is None:
            self._must(False, f"START comes first: COMMITTED {txid} has none")
            return
        found: dict[int, set[tuple[int, ...]]] = {
            s: set() for s in range(len(self._world.plan.kinds))
        }
        for name, kind in self._world.plan.tables.items():
            if kind.since > release and name not in record["tables"]:
                continue  # the former program has published it
            ledger = self.ledgers.get(name)
            is_late = self._is_late(name) or name in self._refilled()
            if is_late and name not in record["tables"]:
                continue  # it gets what it lacks before it is named
            if ledger is not None and txid in ledger.txids:
                self.final.setdefault(txid, set()).add(ledger.attempts[txid][0])
                for stream in kind.streams:
                    found[stream].add(_of_stream(ledger.txids[txid], stream))
                continue
            # A table whose columns are not known yet has no version for batches without rows.
            own = self._records_of_start(start)
            brings = any(_of_stream(own, stream) for stream in kind.streams)
            if kind.feed != "rows":
                brings = self._derived(kind, txid, own, []) is not None
            self._must(
                not brings,
                f"never ahead of a table: COMMITTED {txid}, and table {name} lacks it",
            )
        meant = [self._records_of_start(one) for one in known]
        for stream, batches in found.items():
            self._must(
                len(batches) <= 1,
                f"one txid, one batch: tables differ about txid {txid} of s{stream}: {batches}",
            )
            self._must(
                batches <= {_of_stream(records, stream) for records in meant},
                f"no START of txid {txid} says what was committed of s{stream}: {batches}",
            )
        records = tuple(r for batches in found.values() for batch in batches for r in batch)
        twice = self.seen.intersection(records)
        self._must(not twice, f"at most once: records {sorted(twice)} are in txid {txid} as well")
        self.seen.update(records)
        self.by_txid[txid] = records

    def _replayed(self, txid: int) -> None:
        gone = self.set_aside.pop(txid, None)
        self._must(gone is not None, f"quarantine: record of txid {txid} deleted, never made")
        of = [start for start in self.starts.values() if start["replay_of"] == txid]
        if gone is None or not of or any(of[-1]["spouts"].values()):
            self._count("quarantined txid replayed")
            return
        self._must(txid in self.given_up, f"quarantine: txid {txid} is dropped, never given up")
        self._count("quarantined txid dropped")
        self.dropped.update(self.records(gone))

    # --- the spouts --------------------------------------------------------------------------

    def emitted(
        self, process: Process, attempt: TransactionAttempt, stream: int, metadata: Any
    ) -> None:
        """A spout is asked for the rows of an attempt."""
        start = self.starts.get((attempt.txid, attempt.attempt_id, process.epoch))
        if attempt.txid <= self.committed and attempt.attempt_id in self.final.get(
            attempt.txid, ()
        ):
            return  # it is read anew for a late table, as that table's rows will show
        self._must(
            start is not None and start["spouts"].get(f"s{stream}") == metadata,
            f"START before emission: {attempt} of epoch {process.epoch} is emitted, and ZooKeeper "
            f"has no START of it with {metadata}",
        )

    def succeeded(self, txid: int) -> None:
        """A spout is told success."""
        self._must(
            txid <= self.committed,
            f"success after COMMITTED: txid {txid} is told, and {self.committed} is committed",
        )

    # --- the tables --------------------------------------------------------------------------

    def file_deleted(self, table: Table, path: str) -> None:
        # Whose commit file was cleaned out of the log, that version nobody reads any more.
        self._must(
            path not in table.referred or not table.is_readable(path),
            f"published files stay: {path} of table {table.name} was deleted",
        )
        if table.owner is not None:
            self.file_deleted(table.owner, f"{table.name.split('/', 1)[1]}/{path}")

    def append_arrived(self, table: Table, version: int, process: Process, *, done: bool) -> None:
        """An append has reached the store."""
        if not done:
            self._world.trace(f"{table.name} v{version} refused to {process}")
            self._count("append lost its race")
            if process.epoch and process.epoch < self.epoch:
                self._count("append of a fenced leader refused")
            return
        self._must(
            self.damaged is None or process.epoch < self.epoch or process.dead,
            f"unreadable is refused: {process} appended to {table.name} while {self.damaged} in "
            "ZooKeeper is damaged",
        )
        commit = json.loads(table.commits[version].split(b"\n", 1)[0])["commitInfo"]
        if process.dead:
            self._count("append of a dead process landed")
        self.landed(table, commit, process)

    def landed(self, table: Table, info: dict[str, Any], process: Process | None) -> None:
        """A version has come to be."""
        ledger = self.ledgers.setdefault(table.name, Ledger())
        publication = info.get("txn")
        marks = ("txn_fence", "txn_settled", "txn_compaction", "txn_change")
        mark = next((info[key] for key in marks if info.get(key)), None)
        if publication is not None:
            self._published(table, ledger, publication, process)
        elif mark is not None:
            self._must(
                mark["epoch"] >= ledger.epoch,
                f"fencing: {table.name} v{table.version} by epoch {mark['epoch']} after "
                f"{ledger.epoch}",
            )
            ledger.epoch = max(ledger.epoch, mark["epoch"])
            if "txn_change" in info:
                self._changed(table, mark, process)
            if "txn_compaction" in info:
                self._count("compaction landed")
                if ledger.last > self.committed:
                    self._count("compaction landed beside an unfinished txid")
            self._world.trace(
                f"{table.name} v{table.version} mark {mark['epoch']} {list(info)[2:]}"
            )
        else:
            self._world.trace(f"{table.name} v{table.version} by a stranger")
        ledger.versions[table.version] = ledger.last
        self._check_rows(table, ledger)
        if publication is not None or mark is not None:
            why = self.states.left(table, publication, mark)
            self._must(not why, f"what has ended leaves: {table.name} v{table.version} {why}")

    def _changed(self, table: Table, mark: dict[str, Any], process: Process | None) -> None:
        self._count("table changed")
        release = process.release if process is not None else -1
        if adds := table.parsed[-1].adds:
            self._count("table rebuilt")
            if adds[0].path.startswith("generation-"):
                self._adopted(f"{table.name}/{adds[0].path.split('/')[0]}", mark["txid"], release)
        self._must(
            self.has_shape(table.name, release) and (release > 0 or not table.active),
            f"former program refused: {process} gives {table.name} v{table.version} the shape "
            f"{table.description()}",
        )
        self._must(
            mark["txid"] == self.committed or self._is_late(table.name),
            f"between two txids: {table.name} v{table.version} is changed at txid {mark['txid']}, "
            f"and {self.committed} is committed",
        )

    def _adopted(self, name: str, txid: int, release: int) -> None:
        self._count("next generation adopted")
        self._must(
            not self.is_stale(name, release) and self.ledgers[name].last == txid,
            f"a next generation is whole: {name} takes its table's place at txid {txid}, holds "
            f"{self.ledgers[name].last} and was filled by programs {self.ledgers[name].releases}",
        )

    def _published(
        self,
        table: Table,
        ledger: Ledger,
        publication: dict[str, Any],
        process: Process | None,
    ) -> None:
        first, last = publication["first_txid"], publication["last_txid"]
        epoch, where = publication["epoch"], f"{table.name} v{table.version}"
        members = publication["members"] or [
            {
                "txid": last,
                "attempt_id": publication["attempt_id"],
                "read": publication["read"],
                "watermark": publication.get("watermark"),
            }
        ]
        told = [f"{m['txid']}:{m['attempt_id']}" for m in members]
        self._world.trace(f"{where} publishes {told} of epoch {epoch}")
        ledger.lacks = table.version in table.garbled
        ledger.brought = bool(table.parsed[-1].adds)
        self._must(epoch >= ledger.epoch, f"fencing: {where} by epoch {epoch} after {ledger.epoch}")
        ledger.epoch = max(ledger.epoch, epoch)
        if process is not None and table.parsed[-1].adds:
            # An emptied txid may come before the columns are known, and with them the shape.
            self._must(
                self.has_shape(table.name, process.release),
                f"former program refused: {process} publishes in {where}, which has another shape",
            )
        if self._is_late(table.name) and first <= self.committed:
            ledger.releases.add(process.release if process is not None else -1)
            self._filled(table, ledger, members, where)
            return
        skips = self._world.plan.tables[table.name].semantics == "transactional"
        if skips and first <= self.committed < last:
            # What it held already was committed meanwhile; of the rest nothing was known.
            self._count("group landed late, in part committed")
        self._must(
            first == self.committed + 1 or (skips and first <= self.committed < last),
            f"txids increase: {where} begins at txid {first}, and {self.committed} is committed",
        )
        self._must(
            [m["txid"] for m in members] == list(range(first, last + 1)),
            f"contiguous: {where} holds {told}, and says {first} to {last}",
        )
        if len(members) > 1:
            self._count("group published")
        if any(txid >= first for txid in ledger.txids):
            self._count("unfinished txid published again")
            if ledger.last != last:
                self._count("unfinished txids published again in another group")
        ledger.txids = {t: records for t, records in ledger.txids.items() if t < first}
        for member in members:
            self._member(table, ledger, member, epoch, where)
        ledger.last = last
        if self.was_restored:
            self._forget_attempts(ledger)

    def _filled(
        self, table: Table, ledger: Ledger, members: list[dict[str, Any]], where: str
    ) -> None:
        """A late table gets what was committed, as if it had always been there."""
        self._count("late table filled")
        if members[0]["txid"] <= ledger.last:
            self._count("late table filled again")
            ledger.last = members[0]["txid"] - 1
            self._must(
                all(
                    ledger.attempts[txid][0] not in self.final.get(txid, ())
                    # The leader may have looked before a process beside it was fenced.
                    or ledger.attempts[txid][1] < ledger.epoch
                    for txid in ledger.txids
                    if txid > ledger.last
                ),
                f"a late table has every txid once: {where} holds {members} again",
            )
            ledger.txids = {t: r for t, r in ledger.txids.items() if t <= ledger.last}
        for member in members:
            txid, attempt = member["txid"], member["attempt_id"]
            is_first = not ledger.last and not any(r for t, r in self.by_txid.items() if t < txid)
            self._must(
                (txid == ledger.last + 1 or is_first)
                # A leader with the former program does not fence this table: one before it may
                # wake up and publish here. COMMITTED may not name it then, see `_differing`.
                and (attempt in self.final.get(txid, ()) or ledger.epoch < self.epoch),
                f"a late table has every txid once: {where} holds {txid}:{attempt} after "
                f"{ledger.last}, and attempts {self.final.get(txid)} were committed",
            )
            own = (start for (t, a, _), start in self.starts.items() if (t, a) == (txid, attempt))
            reads = [start for start in own if start["spouts"] == member["read"]]
            if not reads:
                self._must(False, f"START before publication: {where} holds {member}")
                return
            ledger.txids[txid] = self._records_of_start(reads[-1])
            ledger.attempts[txid] = attempt, ledger.epoch
            ledger.last = txid

    def _member(
        self, table: Table, ledger: Ledger, member: dict[str, Any], epoch: int, where: str
    ) -> None:
        txid, attempt = member["txid"], member["attempt_id"]
        before = ledger.attempts.get(txid, (-1, 0))[0]
        self._must(
            attempt > before,
            f"attempts never go back: {where} holds {txid}:{attempt} after attempt {before}",
        )
        ledger.attempts[txid] = attempt, epoch
        start = self.starts.get((txid, attempt, epoch))
        if start is None or start["spouts"] != member["read"]:
            self._must(
                False,
                f"START before publication: {where} holds {txid}:{attempt} of epoch {epoch} with "
                f"{member['read']}, and ZooKeeper had {start and start['spouts']}",
            )
            return
        self._must(
            start["watermark"] == member.get("watermark"),
            f"one watermark: {where} holds {txid}:{attempt} with {member.get('watermark')}, and "
            f"its START has {start['watermark']}",
        )
        ledger.txids[txid] = self._records_of_start(start)
        ledger.rows.pop(txid, None)

    def _check_rows(self, table: Table, ledger: Ledger) -> None:
        """The rows of the newest version, as a reader finds them, against the oracle."""
        kind = self._world.plan.kind(table.name)
        if ledger.lacks:
            return
        if kind.feed != "rows":
            self._check_derived(table, ledger, kind)
            return
        expected: list[int] = []
        for txid, records in ledger.txids.items():
            expected += [record for record in records if not self.states.drops(txid, record)]
        if len(kind.streams) < len(self._world.source_sizes):
            expected = [r for r in expected if r // STREAM_SIZE in kind.streams]
        rows: list[Any] = []
        for path in table.active:
            blob = table.blobs.get(path)
            if blob is None:
                self._must(False, f"files are there: {table.name} v{table.version} names {path}")
                return
            rows += blob.rows
        found: list[int] = []
        for row in rows:
            found += (row.record,) if kind.kind == "append" else row.value
        if kind.ends is not None:
            why = self.states.wrong(table, ledger.txids, ledger.last, rows)
            self._must(not why, f"keys that have not ended: {table.name} v{table.version} {why}")
            # Those that have ended may be there, and may be gone.
            expected = [*(Counter(expected) & Counter(found)).elements()]
        expected.sort()
        found.sort()
        if expected != found:
            surplus, missing = Counter(found), Counter(expected)
            self._must(
                False,
                f"rows are those of the txids: {table.name} v{table.version} has "
                f"{sorted((surplus - missing).elements())} too many and lacks "
                f"{sorted((missing - surplus).elements())}",
            )

    def _check_once(self, table: Table, ledger: Ledger, found: dict[int, list[Any]]) -> None:
        """No key of a state is told to end twice with the same records."""
        ends: Counter[int] = Counter()
        for txid, rows in found.items():
            for _, value, previous in rows:
                if previous is not None and not {*previous} <= {*(value or ())}:
                    ends.update(previous)
                    if txid not in ledger.rows:
                        self._count("key begun anew" if value else "key ended")
        twice = [record for record, times in ends.items() if times > 1]
        self._must(not twice, f"ends once: {table.name} v{table.version} ends {twice} twice")

    def _check_derived(self, table: Table, ledger: Ledger, kind: TableKind) -> None:
        """The same for what a join, a query or new values feed."""
        found: dict[int, list[Any]] = {}
        for path in table.active:
            blob = table.blobs.get(path)
            if blob is None:
                self._must(False, f"files are there: {table.name} v{table.version} names {path}")
                return
            for row in blob.rows:
                found.setdefault(row.txid, []).append(row.record)
        ledger.rows = {txid: rows for txid, rows in ledger.rows.items() if txid in ledger.txids}
        if kind.feed == "new values":
            self._check_once(table, ledger, found)
        for txid, records in ledger.txids.items():
            rows = sorted(found.pop(txid, ()), key=repr)
            if txid not in ledger.rows:
                why = self._derived(kind, txid, records, rows)
                if why:
                    self._must(False, f"{kind.feed}: {table.name} v{table.version}: {why}")
                    return
                ledger.rows[txid] = rows
            self._must(
                rows == ledger.rows[txid],
                f"rows are those of the txids: {table.name} v{table.version} has {rows} of txid "
                f"{txid}, and had {ledger.rows[txid]}",
            )
        self._must(not found, f"rows are those of the txids: {table.name} has {found} as well")

    def _derived(
        self, kind: TableKind, txid: int, records: tuple[int, ...], rows: list[Any]
    ) -> str | None:
        """What is wrong with the rows of a txid that was just published."""
        keys = self._world.plan.keys
        own = [_of_stream(records, stream) for stream in kind.streams]
        if kind.feed.startswith("join "):
            expected: list[Any] = _pairs(own[0], own[1], keys, kind.feed.removeprefix("join "))
        elif kind.feed == "query committed":
            as_of = self._as_of(kind, rows)
            expected = [(r, self.states.value(kind.of, r % keys, as_of)) for r in own[0]]
        elif kind.feed == "query txid-1":
            expected = [(r, self.states.value(kind.of, r % keys, txid - 1)) for r in own[0]]
        elif kind.feed == "final values":
            expected = self.states.final(kind.of, txid)
            rows = [(row.key, row.value) for row in rows]
        else:
            expected = self.states.changes(kind.of, txid, records)
            rows = [(*row,) for row in rows]
        if sorted(expected, key=repr) == sorted(rows, key=repr):
            return None
        return f"txid {txid} has {sorted(rows, key=repr)}, and ought to have {expected}"

    def _txid(self, record: int) -> int:
        """The committed txid of a record; one that is not committed is later than any."""
        return next((t for t, records in self.by_txid.items() if record in records), 10**9)

    def _as_of(self, kind: TableKind, rows: list[Any]) -> int:
        """The committed txid that a query has seen."""
        if self._world.plan.tables[kind.of].ends is not None:
            keys = self._world.plan.keys
            # Of keys that have ended no record shows it.
            fits = (
                txid
                for txid in range(self.committed + 1)
                if all(value == self.states.value(kind.of, r % keys, txid) for r, value in rows)
            )
            return next(fits, self.committed)
        last = max((r for _, value in rows for r in value or ()), key=self._txid, default=None)
        return 0 if last is None else self._txid(last)

    # --- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Everything is committed: every record in exactly one txid, in every table."""
        sizes = self._world.source_sizes
        everything = {s * STREAM_SIZE + i for s, size in enumerate(sizes) for i in range(size)}
        aside = {r for read in self.set_aside.values() for r in self.records(read)}
        accounted = (self.seen, aside, self.dropped)
        self._must(
            set().union(*accounted) == everything and sum(map(len, accounted)) == len(everything),
            f"exactly once: {sorted(everything.difference(*accounted))} are in no committed txid, "
            f"{sorted(self.seen & (aside | self.dropped))} in one and set aside or dropped",
        )
        for name, ledger in self.ledgers.items():
            self._must(
                ledger.last in (self.committed, 0)
                # A clean stop may leave a txid open that has nothing to read.
                or not any(r for t, r in ledger.txids.items() if t > self.committed),
                f"at the end {name} holds txid {ledger.last}, and {self.committed} is committed",
            )


def _pairs(left: tuple[int, ...], right: tuple[int, ...], keys: int, how: str) -> list[Any]:
    pairs: list[Any] = [(a, b) for a in left for b in right if a % keys == b % keys]
    if how != "inner":
        met = {a for a, _ in pairs}
        pairs += [(a, None) for a in left if a not in met]
    if how == "full":
        met = {b for _, b in pairs}
        pairs += [(None, b) for b in right if b not in met]
    return pairs


def _of_stream(records: tuple[int, ...], stream: int) -> tuple[int, ...]:
    return tuple(record for record in records if record // STREAM_SIZE == stream)
