"""Declare a topology: streams from spouts into committers.

Source: `org.apache.storm.trident.TridentTopology`, `Stream`, `fluent.GroupedStream`,
`TridentState`. Every check that needs no data is made here, when the mistake is made.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txn.config import TopologyConfig
from txn.config.home import find_home, nearest_home, program_folder
from txn.config.settings import completed
from txn.dataflow.definition import Definition, Until
from txn.dataflow.expectations import Expectation, OnViolation, SetAside, check_rule
from txn.dataflow.graph import (
    Aggregation,
    AsOf,
    Dimension,
    FinalValues,
    Join,
    Merge,
    NewValues,
    Node,
    Place,
    Ranking,
    Sink,
    Source,
    StateQuery,
    Transform,
    Transformation,
    check_join,
)
from txn.dataflow.kept import Kept
from txn.dataflow.repeats import NoRepeat, Repeats
from txn.dataflow.sessions import SessionRows, Sessions
from txn.dataflow.time_joins import JoinInTime
from txn.dataflow.watermarks import (
    Ahead,
    Duration,
    Late,
    Watermark,
    expiry_of,
    microseconds,
    require_guarded,
)
from txn.errors import AbandonedError, TopologyError
from txn.interfaces import Aggregate, Committer, Spout, State
from txn.interfaces.committer_capabilities import (
    ChecksChanges,
    FindsTable,
    KeepsBeside,
    reporting_changes,
)
from txn.interfaces.published import CanPublish
from txn.interfaces.spout import undeclared
from txn.interfaces.spout_capabilities import StartsHere
from txn.spark.catalog import SparkCatalog
from txn.spark.ranking import RANK, ranking_problems
from txn.storage.catalog_names import as_location, is_table_name, located
from txn.storage.locations import identity, is_relative, local_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from txn.engine.base.threads import Straggler
    from txn.engine.reporting.report import RunReport
    from txn.engine.running import RunningTopology
    from txn.observers import Observer
    from txn.protocol.store import ProgressStore

__all__ = ["GroupedStream", "Stream", "Topology", "TxnState", "Until"]

_OF_TABLES = ("new_tables", "dropped_tables", "backfilled_tables", "rebuilt_tables")
"""Settings that are lists of tables."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TXIDS = re.compile(r"\s*([1-9]\d*)\s+txids?\s*")


class Topology:
    """A named dataflow whose progress outlives the process.

    Args:
        name: the durable identity: ZooKeeper and every table know the topology by it. Letters,
            digits, ".", "_" and "-", starting with a letter or digit.
        config: see `TopologyConfig`.
        bad_rows: an AppendTable for the rows that a rule sets aside (`Stream.expect`). Every txid
            commits its bad rows together with everything else.

    Raises:
        TopologyError: a name that could not be a znode of its own; no table.
    """

    def __init__(
        self,
        name: str,
        config: TopologyConfig | None = None,
        *,
        bad_rows: Committer | None = None,
    ) -> None:
        _check_name(name, "topology")
        self.name = name
        self.config = config if config is not None else TopologyConfig()
        self.program_folder = program_folder()
        """The folder of the program's file; None: a notebook, a prompt or a test."""
        self.settings = completed(self.config, os.environ, [self.program_folder, Path()])
        """`config`, completed from the environment and from files."""
        self._sources: dict[str, Source] = {}
        self._sinks: list[Sink] = []
        self._beside: KeepsBeside | None = None
        """The first table, beside which those of `_kept` lie."""
        self._rules: list[Expectation] = []
        self._kept: dict[Kept, Sink | None] = {}
        """What later txids look up -> its table, once there is a table that it lies beside."""
        self._bad_rows: Sink | None = None
        if bad_rows is not None:
            if not isinstance(bad_rows, Committer):
                raise TopologyError(
                    f"Topology '{name}' needs an AppendTable for bad_rows, not "
                    f"{type(bad_rows).__name__}. Write for example "
                    "bad_rows=AppendTable('warehouse/bad_rows').",
                    number="TXN-122",
                )
            self._bad_rows = Sink(SetAside(()), bad_rows)
        self._names: dict[int, str] = {}
        """Number of a committer (`id`) -> the name that the program has for its table."""
        self._stragglers: list[Straggler] = []
        """Threads that runs in this process left behind; see `AbandonedError`."""
        self._running: RunningTopology | None = None
        """The newest run of this object."""

    def __repr__(self) -> str:
        """Name, streams and tables."""
        streams = ", ".join(source.name for source in self.sources) or "none"
        tables = ", ".join(sink.name for sink in self.sinks) or "none"
        return f"<Topology '{self.name}': streams {streams}; tables {tables}>"

    @property
    def home(self) -> Path:
        """The folder whose `.txn` has progress, logs and notes (`txn.config.home`)."""
        tables = [s.name for s in self.sinks if s.committer.lies_in_folder]
        tables = [table for table in tables if not is_table_name(table)]
        if self._reads_relative or any(map(is_relative, tables)):
            return Path()
        own = nearest_home() if self.program_folder is None else self.program_folder
        paths = [path for table in tables if (path := local_path(table)) is not None]
        is_new = bool(paths) and not any(Path(path, "_delta_log").is_dir() for path in paths)
        return own if is_new else find_home(self.name, own)

    @property
    def _reads_relative(self) -> bool:
        spouts = [source.spout for source in self.sources]
        return any(isinstance(one, StartsHere) and one.starts_here() for one in spouts)

    @property
    def definition(self) -> Definition:
        """The declarations so far, in the form that runs, plans and recoveries take."""
        return Definition(self.name, self.settings, self.sources, self.sinks, tuple(self._rules))

    @property
    def sources(self) -> tuple[Source, ...]:
        """The streams, in the order in which they were declared."""
        return tuple(self._sources.values())

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The committers with their streams, in the order in which they publish.

        The table of bad rows is the last one: a rule may apply to the new values of any other.
        """
        used = {node for sink in self._sinks for node in sink.parent.ancestors()}
        kept = (self._table_of(kept) for kept in self._kept if kept.owner in used)
        return (*self._sinks, *kept, *([self._bad_rows] if self._bad_rows else []))

    def _keep(self, kept: Kept) -> None:
        self._kept.setdefault(kept)

    def _table_of(self, kept: Kept) -> Sink:
        """The table for what later txids look up, beside the first table of the topology."""
        sink = self._kept[kept]
        if sink is None:
            if self._beside is None:
                raise TopologyError(
                    f"{kept.owner.operation} of stream '{kept.owner.label()}' keeps rows beside "
                    f"the first StateTable or AppendTable, and topology '{self.name}' has neither.",
                    number="TXN-105",
                )
            self._refuse_same_name(kept)
            name = re.sub(r"[^\w.-]", "-", f"{self.name}_{kept.name}")
            committer = self._beside.keeping(
                name, kept.keys, kept.time, kept.after, whole=kept.whole
            )
            sink = Sink(kept, committer)
            self._require_own_place(sink)
            self._kept[kept] = sink
        return sink

    def _refuse_same_name(self, kept: Kept) -> None:
        others = (one for one, sink in self._kept.items() if sink is not None)
        if any(kept.name.lower() == other.name.lower() for other in others):
            method, keys = kept.owner.operation, ", ".join(kept.keys)
            raise TopologyError(
                f"{method} of stream '{kept.owner.label()}' keeps rows by {keys} in a table named "
                "after both, and another one of the same streams does so, too. Declare it once and "
                "use its result twice, or rename a key of one of them in a transform before.",
                number="TXN-110",
            )

    def stream(
        self,
        name: str,
        spout: Spout[Any],
        *,
        was: str | None = None,
        after: Sequence[Stream] = (),
    ) -> Stream:
        """Declare the stream of a spout (Trident: `newStream`).

        Args:
            name: identity of the stream's progress within the topology.
            was: the name that the stream had before. It goes on from its position under that name.
                From the first committed txid on, its progress is stored under `name`; `was` may
                stay, and changes nothing then.
            after: streams to read first. Until the first record of this stream is planned, it is
                skipped in every txid for which one of these has something to read. So a query as
                of txid - 1 has all rows of a dimension that existed when the first fact comes. From
                then on all are read side by side.

        Raises:
            TopologyError: the name is taken or malformed, `was` names another stream of the
                topology or what another one was, `after` has something other than streams
                of this topology, `spout` is not a Spout, its class lacks `kind` or `metadata_type`,
                or it sets aside rows that do not parse, and the topology has no table for them.
        """
        _check_name(name, "stream")
        if name in self._sources:
            raise TopologyError(
                f"Topology '{self.name}' has a stream '{name}' already. Progress is kept by "
                "stream name, so two spouts cannot share one: give this one a name of its own.",
                number="TXN-104",
            )
        self._check_was(name, was)
        if not isinstance(spout, Spout):
            raise TopologyError(
                f"Stream '{name}' of topology '{self.name}' was given {type(spout).__name__}, "
                "which is not a Spout. Inherit from txn.interfaces.Spout or PartitionedSpout.",
                number="TXN-109",
            )
        lacks = undeclared(spout)
        if lacks is not None:
            raise TopologyError(
                f"Stream '{name}' was given a spout whose class does not say what it is: {lacks}. "
                "Set it in the class.",
                number="TXN-109",
            )
        for earlier in after:
            if getattr(earlier, "_topology", None) is not self:
                raise TopologyError(
                    f"Stream '{name}' of topology '{self.name}' is to be read after {earlier!r}, "
                    "which is not a stream of this topology. Pass a list of what its stream() "
                    "returned, such as after=[dimension].",
                    number="TXN-107",
                )
        before = dict.fromkeys(source for earlier in after for source in earlier._node.sources())
        source, rule = Source(name, spout, tuple(before), was), None
        if spout.unparsed is not None:
            rule = Expectation.parses(source, spout.unparsed)
            self._add_rule(rule)
        self._sources[name] = source
        return Stream(self, rule or source)

    def _check_was(self, name: str, was: str | None) -> None:
        """Refuse a former name that could mean two streams."""
        if was is not None:
            _check_name(was, "stream")
        other = self.definition.renamed.get(name)
        if other is not None or was in self._sources or was == name:
            former, present = (name, other) if other is not None else (was, name)
            raise TopologyError(
                f"Topology '{self.name}' has a stream '{former}', and stream '{present}' was "
                f"'{former}' before: both would go on from one position. Remove was='{former}' if "
                f"'{present}' is another stream. To use the name '{former}' again, first run the "
                f"topology without it until a txid is committed, then remove was='{former}' and "
                "declare it.",
                number="TXN-104",
            )
        same = self.definition.renamed.get(was) if was is not None else None
        if same is not None:
            raise TopologyError(
                f"Streams '{same}' and '{name}' of topology '{self.name}' were both '{was}' "
                "before: only one of them can go on from its position. Remove was= from the "
                "other.",
                number="TXN-104",
            )

    def run(
        self,
        spark: SparkSession,
        *,
        zookeeper: str = "embedded",
        until: Until = "forever",
        standby: bool = False,
        progress: bool | None = None,
        observers: Sequence[Observer] = (),
    ) -> RunReport:
        """Run in the foreground until `until`, Ctrl-C or SIGTERM.

        Args:
            spark: a session with Delta (`txn.session.delta_session`).
            zookeeper: "embedded", "embedded:FOLDER", or "host:port,host:port/chroot".
            until: "forever"; "caught_up": until no spout has anything to read; or a txid.
            standby: while another process leads, start everything, wait, and take over when it
                ends, instead of being refused. Needs servers by host, not "embedded".
            progress: show the state of the run on stderr, in one line. None: if stderr is a
                terminal, or in a notebook.
            observers: get the run's events, each on a thread of its own (`txn.observers`), and
                never slow the run down.

        Raises:
            TxnError: the error that ended the run; see `txn.errors`. State is intact.
        """
        from txn.progress_bar import progress_bar

        running = self.start(
            spark, zookeeper=zookeeper, until=until, standby=standby, observers=observers
        )
        try:
            with progress_bar(running, until, progress):
                return running.await_termination(signals=True)
        except KeyboardInterrupt:  # in the moment before the run handles signals
            return running.stop()

    def start(
        self,
        spark: SparkSession,
        *,
        zookeeper: str = "embedded",
        until: Until = "forever",
        standby: bool = False,
        store: ProgressStore | None = None,
        observers: Sequence[Observer] = (),
    ) -> RunningTopology:
        """Run in the background; arguments as for `run`. A standby waits in the background.

        Args:
            store: keeps progress in place of `zookeeper`; the run closes it.

        Raises:
            TopologyError: nothing to run, an invalid `until`, or not an observer.
            AbandonedError: an earlier run of this object has left threads behind.
        """
        from txn.engine.running import RunningTopology, tell_refused
        from txn.spark.jvm import require_classic

        try:
            require_classic(spark)
            self.check_complete(until)
            self.find_tables(spark)
            _check_observers(observers)
            self._refuse_stragglers()
            with contextlib.ExitStack() as resources:
                if store is None:
                    store = self._connect(zookeeper, resources, standby=standby)
                running = RunningTopology(
                    self.definition,
                    spark,
                    store,
                    until=until,
                    standby=standby,
                    resources=resources.pop_all(),
                    left_behind=self._stragglers,
                    observers=observers,
                )
        except BaseException as error:
            listening = [one for one in observers if _is_observer(one)]
            tell_refused(self.definition, until, listening, error, standby=standby)
            raise
        self._running = running
        running.begin()
        return running

    def backfill(
        self,
        spark: SparkSession,
        tables: Sequence[str],
        *,
        from_rows: Sequence[str] = (),
        zookeeper: str = "embedded",
    ) -> dict[str, int]:
        """Give tables the committed txids that they lack, beside a leader of the former program.

        What the txids read is read anew for these tables alone. A table that lacks nothing gets a
        next generation, in the shape and with the transforms of this program, which no reader
        sees. Ends when they hold the newest committed txid; then run this program with the setting
        `backfilled_tables`, which lets the next generations take their tables' places.

        Args:
            tables: their paths.
            from_rows: tables whose rows are taken instead of reading the sources anew: of `tables`,
                one whose next generation begins with its own rows, as a rebuild; or an append
                table that holds the stream of a state table.
            zookeeper: as for `run`.

        Returns:
            Table -> the newest txid that it, or its next generation, holds.

        Raises:
            TopologyError: a path is no table of this topology, nothing is committed yet, or the
                rows of a table depend on more than its sources.
            RecoveryRefusedError: the logs do not go back to the first txid.
            FencedError: a leader with the same tables has begun; it goes on by itself.
        """
        from txn.backends import open_backend
        from txn.config.location import at_home
        from txn.engine.filling import fill
        from txn.spark.jvm import require_classic

        require_classic(spark)
        self.check_complete("caught_up")
        self.find_tables(spark)
        tables, from_rows = self._located(spark, tables), self._located(spark, from_rows)
        self._refuse_stragglers()
        with open_backend(at_home(zookeeper, self), self.settings) as backend:
            status = backend.status(self.name)
            store = backend.open(self.name)
            with contextlib.closing(store):
                return fill(
                    self.definition,
                    spark,
                    store,
                    tables,
                    copied=from_rows,
                    epoch=status.epoch,
                    life=status.incarnation,
                    stragglers=self._stragglers,
                )

    def preview(self, spark: SparkSession, rows: int = 20) -> dict[str, DataFrame]:
        """Compute the rows that the first batch would put into each table; write nothing.

        The batch is planned from the beginning of every source, regardless of commits, and states
        are empty. No ZooKeeper is needed.

        Args:
            spark: a session with Delta (`txn.session.delta_session`).
            rows: how many rows of each table to compute and hold.

        Returns:
            Table -> rows that it would get; for a state, keys and values after the batch. A table
            is missing if its columns are unknown until its streams are read.

        Raises:
            TxnError: any error that a run would raise.
            TopologyError: the user's code or Spark failed on the rows; or this object runs.
        """
        from txn.engine.preview import preview

        if self._running is not None and self._running.is_active:
            raise TopologyError(
                f"Topology '{self.name}' runs: its spouts are in use. Preview it before, or after "
                "stop(), or in another process: txn preview FILE.py:TOPOLOGY.",
                number="TXN-116",
            )
        self.find_tables(spark)
        return dict(preview(self.definition, spark, rows).tables)

    def find_tables(self, spark: SparkSession) -> None:
        """Find the folders of all tables that have a name in Spark's catalog (`a.b.c`).

        `run`, `start`, `backfill` and `preview` do so first. From then on the topology has the
        folders, and so has what it makes durable.

        Raises:
            TopologyError: the catalog has no place for a name, or two names are one table.
        """
        for sink in self.sinks:
            self._names.setdefault(id(sink.committer), sink.name)
        nodes = [node for sink in self.sinks for node in sink.parent.ancestors()]
        states = [node.state for node in nodes if isinstance(node, StateQuery)]
        for one in (*(sink.committer for sink in self.sinks), *states):
            if isinstance(one, FindsTable):
                one.find_table(spark)
        for node in nodes:
            if isinstance(node, Dimension):
                node.place.find(SparkCatalog(spark))
        self.settings = self._located_settings(spark)
        for sink in self.sinks:
            self._require_own_place(sink)
        self.definition.check_queries()

    def _located(self, spark: SparkSession, tables: Sequence[str]) -> tuple[str, ...]:
        return tuple(located(table, SparkCatalog(spark)) for table in tables)

    def _located_settings(self, spark: SparkSession) -> TopologyConfig:
        """The settings, with the folders of the tables that they name."""
        settings, columns = self.settings, []
        for entry in settings.dropped_columns:
            table, colon, column = entry.rpartition(":")
            columns.append(f"{located(table, SparkCatalog(spark))}{colon}{column}")
        found = {name: self._located(spark, getattr(settings, name)) for name in _OF_TABLES}
        found["dropped_columns"] = tuple(columns)
        changed = {name: now for name, now in found.items() if now != getattr(settings, name)}
        return settings.model_copy(update=changed) if changed else settings

    def _connect(
        self, zookeeper: str, resources: contextlib.ExitStack, *, standby: bool
    ) -> ProgressStore:
        from txn.backends import store_of_run
        from txn.config.location import at_home, resolve_shared

        if standby:
            resolve_shared(zookeeper)
        return store_of_run(at_home(zookeeper, self), self.name, self.settings, resources)

    def _refuse_stragglers(self) -> None:
        alive = [one for one in self._stragglers if one.thread.is_alive()]
        self._stragglers[:] = alive
        if alive:
            raise AbandonedError(
                f"Topology '{self.name}' cannot run in this process again: an earlier run of it "
                f"left behind {'; '.join(map(str, alive))}. Start a new process."
            )

    def check_complete(self, until: Until) -> None:
        """Refuse a topology with a stream that leads nowhere, and an invalid `until`.

        Raises:
            TopologyError: one of these.
        """
        self.definition.check_complete()
        valid = until in ("forever", "caught_up") or (
            isinstance(until, int) and not isinstance(until, bool) and until >= 1
        )
        if not valid:
            raise TopologyError(
                f"until={until!r} is not valid: use 'forever', 'caught_up' or a txid from 1.",
                number="TXN-109",
            )

    def _add_sink(self, node: Node, committer: Committer, declared: object) -> Sink:
        sink = Sink(node, committer)
        sink.check_pairing()
        self._require_own_place(sink)
        if self._beside is None and isinstance(declared, KeepsBeside):
            self._beside = declared
        self._sinks.append(sink)
        return sink

    def _require_own_place(self, sink: Sink) -> None:
        """Refuse a table that another sink has, or that lies in another one's folder."""
        self._require_free_place(sink.name, sink, in_folder=sink.committer.lies_in_folder)

    def _require_free_place(self, table: str, own: Sink | None, *, in_folder: bool = True) -> None:
        """Refuse a table that the topology has already, or whose folder is in another one's.

        Args:
            own: its sink, if it has one.
            in_folder: whether it lies in a folder.
        """
        place = identity(table)
        others = (*self._sinks, *filter(None, self._kept.values()))
        others = (*others, *([self._bad_rows] if self._bad_rows else []))
        places = {o.name: o.committer.lies_in_folder for o in others if o is not own}
        places |= {one.name: True for other in others for one in other.published}
        other = next((name for name in places if identity(name) == place), None)
        if other is not None:
            names = {o.name: self._names.get(id(o.committer)) for o in others if o is not own}
            table = self._names.get(id(own.committer), table) if own else table
            other = names.get(other) or other
            spelled = "" if other == table else f", written '{other}': both are '{place}'"
            raise TopologyError(
                f"Topology '{self.name}' has a committer for table '{table}' already{spelled}. "
                "A table holds one publication per txid: give each committer a table of its own.",
                number="TXN-110",
            )
        if in_folder:
            self._refuse_nested(table, [name for name, lies in places.items() if lies])

    def _refuse_nested(self, table: str, others: Iterable[str]) -> None:
        """Refuse a table in another one's folder: a VACUUM of that one would delete its files."""
        for other in others:
            outer, inner = sorted((other, table), key=lambda name: len(identity(name)))
            if identity(inner).startswith(f"{identity(outer).rstrip('/')}/"):
                raise TopologyError(
                    f"Table '{inner}' of topology '{self.name}' lies in the folder of table "
                    f"'{outer}': a VACUUM of the outer one would delete the files of the inner "
                    "one. Give each table a folder that is in none of the others.",
                    number="TXN-110",
                )

    def _add_rule(self, rule: Expectation) -> None:
        check_rule(rule, self._rules)
        if rule.on_violation == "set_aside":
            if self._bad_rows is None:
                raise TopologyError(
                    f"Rule '{rule.name}' of stream '{rule.label()}' sets rows aside, but topology "
                    f"'{self.name}' has no table for them. Give it one: Topology("
                    f"'{self.name}', bad_rows=AppendTable('warehouse/bad_rows')).",
                    number="TXN-122",
                )
            rules = tuple(other for other in self._rules if other.on_violation == "set_aside")
            sink = Sink(SetAside((*rules, rule)), self._bad_rows.committer)
            sink.check_pairing()
            self._bad_rows = sink
        self._rules.append(rule)


class Stream:
    """A stream of batches: every method returns a new stream and runs nothing."""

    def __init__(self, topology: Topology, node: Node) -> None:
        self._topology = topology
        self._node = node

    def transform(self, function: Transformation) -> Stream:
        """Apply a function to each batch's DataFrame (Trident: `each`, `map`, `filter`, `project`).

        The function runs on the driver, once per attempt, and must only build a DataFrame. To
        fail the batch, raise `FailedException`; any other exception stops the topology.

        Args:
            function: of the DataFrame; or of the DataFrame and the `TransactionAttempt`, when it
                has two positional parameters without default. `attempt.attempt_id` counts the
                tries of a batch from 0, restarts included. Before the first batch it is called
                once with no rows and attempt 1:0, to learn the columns.
        """
        if not callable(function):
            raise TopologyError(
                f"transform() of stream '{self._node.label()}' needs a function from DataFrame "
                f"to DataFrame, not {type(function).__name__}.",
                number="TXN-103",
            )
        return Stream(self._topology, Transform(self._node, function))

    def expect(
        self, name: str, condition: Column | str, on_violation: OnViolation = "fail"
    ) -> Stream:
        """Check every row against a rule (Delta Live Tables: expectations).

        A row breaks the rule if the condition is false or NULL. The rows that break it are counted
        in every table's log (`txn history`) and in the run's report, per txid.

        Args:
            name: of the rule; once per stream.
            condition: a boolean Column over the stream's columns, or the same in SQL; Spark makes a
                Column only where a session runs, so files for `txn run` write SQL. It may rely on
                the rules before it: rows that broke one of them are not judged again.
            on_violation: "fail": the batch fails, as for an error of your own code; "drop": the
                row goes no further; "set_aside": it goes to the topology's table of bad rows
                instead, with stream, rule, position, the row as JSON, and the reason.

        Raises:
            TopologyError: no name, a name used twice, not a condition, an unknown `on_violation`,
                or no table for rows that are set aside.
        """
        rule = Expectation(self._node, name, condition, on_violation)
        self._topology._add_rule(rule)
        return Stream(self._topology, rule)

    def watermark(
        self,
        column: str,
        delay: Duration,
        *,
        late: Late = "keep",
        by: str | None = None,
        idle_after: int | None = None,
        max_ahead: Duration | None = None,
    ) -> Stream:
        """Declare the stream's event time, and what becomes of late rows.

        Each txid has one watermark: the newest event time of the txids up to `max_spout_pending`
        before it, minus `delay`; of several streams with one, the smallest. It is durable in
        START, so all attempts and all tables have the same, and it never goes back. A row is late
        if its event time is not after the watermark of its txid, or NULL. Late rows are counted
        in every table's log as the rule "late" (see `expect`).

        Source: Structured Streaming's `withWatermark`; Flink's side outputs and idle sources.

        Args:
            column: the event time, a timestamp.
            delay: how far the watermark stays behind the newest event, as "10 minutes" or a
                `timedelta`: rows that come that much after it are not late yet.
            late: "keep": late rows go on as others; "drop": they go no further; "set_aside": they
                go to the topology's table of bad rows instead.
            by: a column with the partition of each row; the slowest one holds the watermark back.
            idle_after: a stream, or a partition of it, that had no row in so many txids does not
                hold the watermark back; None: it always does.
            max_ahead: rows with an event time more than this after the watermark are set aside as
                the rule "ahead", and do not move it; None: there is no limit. In the first txids,
                which have no watermark yet, there is none either.

        Raises:
            TopologyError: a value is not valid, the stream has a watermark already, or it comes
                after a join, a merge, an aggregate or a table.
        """
        node = self._node
        ahead = () if max_ahead is None else (Ahead.of(node, column, max_ahead),)
        rule = Watermark.of(ahead[0] if ahead else node, column, delay, late, by, idle_after)
        for each in (*ahead, rule):
            self._topology._add_rule(each)
        return Stream(self._topology, rule)

    def drop_duplicates(self, keys: str | Sequence[str], within: Duration | None = None) -> Stream:
        """Drop the rows whose keys a row before has, in this txid or in any before it.

        The first one goes on: of an earlier txid, or of one txid that with the smallest event
        time. A replay with other rows lets go of the keys of those before. Dropped rows are counted
        in every table's log as the rule "duplicate KEYS" (see `expect`).

        The keys are in a table of the topology's own, beside its first table, named after topology,
        stream and keys. Processing of a txid goes on beside the commits of those before; it begins
        when these are staged.

        Source: Structured Streaming's `dropDuplicates`, `dropDuplicatesWithinWatermark`.

        Args:
            keys: the columns that identify an event; NULL is a value like any other.
            within: how long a key is known, as "7 days" or a `timedelta`: until the watermark is
                that much after the event time of its first row. None: for ever, in a table that
                grows with them.

        Raises:
            TopologyError: no column, no duration, `within` without a watermark before, or a
                spout whose replays lose rows.
        """
        repeats = Repeats.of(self._node, self._columns_of(keys, "drop_duplicates"), within)
        rule = NoRepeat.of(repeats)
        self._topology._add_rule(rule)
        self._topology._keep(repeats.kept(rule))
        return Stream(self._topology, rule)

    def session_windows(self, keys: str | Sequence[str], gap: Duration) -> Stream:
        """Add to every row its session: rows of the same keys, each at most `gap` after another.

        Rows come out when their session is over, all in the txid whose watermark reaches its end:
        the event time of its last row plus `gap`. They have a column `session_window` with `start`
        and `end`, so `group_by(*keys, "session_window").aggregate(...)` gives each session once.
        Rows of open sessions are in a table of the topology's own beside its first table.

        Source: `session_window` of Structured Streaming, session windows of Flink.

        Args:
            keys: the columns whose rows have sessions of their own; NULL is a value like any other.
            gap: as "30 minutes" or a `timedelta`; the stream needs a watermark that lets no late
                row pass.

        Raises:
            TopologyError: no column, no duration, or no such watermark before.
        """
        sessions = Sessions.of(self._node, self._columns_of(keys, "session_windows"), gap)
        self._topology._keep(sessions.kept())
        return Stream(self._topology, SessionRows(sessions, are_over=True))

    def group_by(self, *keys: str) -> GroupedStream:
        """Group by columns; later aggregates are per group (Trident: `groupBy`).

        Raises:
            TopologyError: no key, a repeated one, or one that is not a column name.
        """
        if not keys:
            raise TopologyError(
                f"group_by() of stream '{self._node.label()}' names no column. For one total over "
                "everything call persistent_aggregate or aggregate on the stream itself.",
                number="TXN-109",
            )
        _check_unique(keys, self._node)
        return GroupedStream(self._topology, self._node, keys)

    def aggregate(self, **aggregates: Aggregate) -> Stream:
        """Aggregate each batch to one row (Trident: global `aggregate`), also an empty batch."""
        return GroupedStream(self._topology, self._node, ()).aggregate(**aggregates)

    def persistent_aggregate(
        self,
        state: State,
        *,
        expire_after: Duration | Aggregate | None = None,
        by: str | Aggregate | None = None,
        **aggregates: Aggregate,
    ) -> TxnState:
        """Keep one running row over all batches (Trident: global `persistentAggregate`).

        One row cannot end: `expire_after` and `by` are refused, unless they are aggregates.
        """
        return GroupedStream(self._topology, self._node, ()).persistent_aggregate(
            state, expire_after=expire_after, by=by, **aggregates
        )

    def partition_persist(self, table: Committer) -> None:
        """Append the rows of each batch to a table, with their txid (Trident: `partitionPersist`).

        Raises:
            TopologyError: not an append table, a weak pairing, or a table used twice.
        """
        if not isinstance(table, Committer):
            raise TopologyError(
                f"partition_persist() of stream '{self._node.label()}' needs an AppendTable, not "
                f"{type(table).__name__}. Running totals go to persistent_aggregate(StateTable).",
                number="TXN-109",
            )
        self._topology._add_sink(self._node, table, table)

    def merge(self, *others: Stream) -> Stream:
        """The rows of this and other streams of the topology, within the batch.

        Raises:
            TopologyError: a stream of another topology; other columns (before the first batch).
        """
        for other in others:
            self._check_same_topology(other)
        return Stream(self._topology, Merge((self._node, *(other._node for other in others))))

    def join(
        self,
        other: Stream,
        on: str | Sequence[str],
        how: str = "inner",
        *,
        within: Duration | None = None,
    ) -> Stream:
        """Join with another stream of the topology: within the batch, or in event time.

        With `within`, rows match whose event times are at most that far apart, whatever txids they
        come in; each match comes in the txid that brings its later row. Rows without a match, of
        kinds that show them, come when no match can come any more: in the txid whose watermark is
        `within` after their event time. Both sides are kept, up to twice as long, in tables of the
        topology's own beside its first table.

        Source: Trident's `join`; with `within` Structured Streaming's stream-stream joins and
        Flink's interval joins.

        Args:
            on: column or columns of both streams; they appear once in the result.
            how: Spark's join types, for example "inner", "left", "full".
            within: as "1 hour" or a `timedelta`; both streams need a watermark, over columns of
                different names, and for "left", "right", "full" and "left_anti" one that lets no
                late row pass. None: only rows of one batch match.

        Raises:
            TopologyError: a stream of another topology, no column to join on, or one of the above
                is missing.
        """
        self._check_same_topology(other)
        columns = self._columns_of(on, "join")
        check_join(how, self._node.label())
        joined = Join(self._node, other._node, columns, how)
        if within is None:
            return Stream(self._topology, joined)
        if how.lower() == "cross":
            raise TopologyError(
                f"join() of stream '{self._node.label()}' in time cannot be how='cross': only rows "
                "with the same keys meet. Use how='inner'.",
                number="TXN-107",
            )
        return self._join_in_time(
            JoinInTime.of(self._node, other._node, columns, joined.kind, within)
        )

    def join_as_of(self, other: Stream, on: str | Sequence[str], *, within: Duration) -> Stream:
        """Add to every row the newest one of another stream at or before its event time.

        A row comes when its event time is over, in the txid whose watermark reaches it: until then
        a newer one may come, also late. It has NULLs if there is none within `within`. Of several
        with the newest time it gets the one with the largest values, column by column.

        Source: Flink's temporal joins, pandas' `merge_asof`.

        Args:
            other: a stream with other names for all columns but those to join on.
            on: column or columns of both streams; they appear once in the result.
            within: how old the other row may be, as "1 hour" or a `timedelta`; both streams need a
                watermark that lets no late row pass, over columns of different names.

        Raises:
            TopologyError: a stream of another topology, no column to join on, or one of the above
                is missing.
        """
        self._check_same_topology(other)
        columns = self._columns_of(on, "join_as_of")
        return self._join_in_time(JoinInTime.of(self._node, other._node, columns, "newest", within))

    def _columns_of(self, on: object, method: str) -> tuple[str, ...]:
        """The columns that a method of this stream was given: at least one, each once."""
        columns = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, Iterable) else ()
        if not columns:
            raise TopologyError(
                f"{method}() of stream '{self._node.label()}' names no column. Name at least one.",
                number="TXN-109",
            )
        _check_unique(columns, self._node)
        return columns

    def _join_in_time(self, node: JoinInTime) -> Stream:
        for kept in node.kept():
            self._topology._keep(kept)
        return Stream(self._topology, node)

    def lookup(
        self,
        table: str | os.PathLike[str],
        on: str | Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Add to every row what a Delta table that others maintain has for its keys.

        A left join: a row without a match gets NULLs, and one with several comes once for each.
        Each txid reads one version of the table, the newest when it is planned. The version is
        durable in START and in every table's log, so a replay reads the same one, and a
        transactional spout stays transactional. Keep that version from VACUUM while the txid is
        open.

        Args:
            table: its path or URI, or its name in Spark's catalog, "catalog.schema.table"; not a
                table of this topology (see `state_query`).
            on: the key columns, which stream and table have under the same names.
            columns: those to add; None: all others of the table.
            storage_options: as for `StateTable`.

        Raises:
            TopologyError: no column to look up, or a table of this topology.
        """
        keys = self._columns_of(on, "lookup")
        wanted = None if columns is None else tuple(columns)
        place, options = Place(as_location(table)), dict(storage_options or {})
        node = Dimension(self._node, place, keys, wanted, options)
        return Stream(self._topology, node)

    def state_query(
        self, state: TxnState | State, on: str | Sequence[str] = (), *, as_of: AsOf = "committed"
    ) -> Stream:
        """Add to every row the values that a state holds for its key (Trident: `stateQuery`).

        Args:
            state: one that this topology keeps, as `persistent_aggregate` returned it, or a
                StateTable that another topology keeps (Trident: `newStaticState`).
            on: the state's key columns, which the stream has under the same names; none for a
                global aggregate. A key that the state lacks gives NULL values.
            as_of: "committed": as of the newest txid that is committed when the batch is
                processed. Fast, up to `max_spout_pending` txids behind, and possibly another at a
                replay, so tables below must be opaque. "txid-1": exactly as of the txid before
                this one; read in the commit turn, where everything below it then runs. The same at
                every replay, so a transactional spout stays transactional. Only for a state of
                this topology. Trident reads the present rows, even of half-committed txids.

        Raises:
            TopologyError: not a state, a state of another topology, keys that are not its keys, or
                an `as_of` that does not apply to it.
        """
        keys = (on,) if isinstance(on, str) else tuple(on)
        where = f"state_query() of stream '{self._node.label()}'"
        if as_of not in ("committed", "txid-1"):
            raise TopologyError(
                f"{where}: as_of={as_of!r} is neither 'committed' nor 'txid-1'.", number="TXN-108"
            )
        if isinstance(state, TxnState):
            return self._query_own(state, keys, as_of, where)
        if not isinstance(state, State):
            raise TopologyError(
                f"{where} needs what persistent_aggregate() returned, or a StateTable, not "
                f"{type(state).__name__}.",
                number="TXN-108",
            )
        if as_of == "txid-1":
            raise TopologyError(
                f"{where}: this topology does not keep that state, so no txid of its own applies "
                "to it. Leave as_of out: it is read as of its newest version.",
                number="TXN-108",
            )
        query = StateQuery(self._node, state, None, None, keys, as_of)
        return Stream(self._topology, query)

    def _query_own(self, state: TxnState, keys: tuple[str, ...], as_of: AsOf, where: str) -> Stream:
        if state.topology is not self._topology:
            raise TopologyError(
                f"{where}: table '{state.name}' is kept by topology '{state.topology.name}'. Pass "
                "its StateTable instead, which is read as of its newest version.",
                number="TXN-108",
            )
        if sorted(keys) != sorted(state.keys):
            raise TopologyError(
                f"{where}: the keys of table '{state.name}' are {list(state.keys)}, but on= names "
                f"{list(keys)}. Name exactly its keys; rename the stream's columns in a transform.",
                number="TXN-108",
            )
        query = StateQuery(self._node, state.state, state.sink, dict(state.aggregates), keys, as_of)
        return Stream(self._topology, query)

    def _check_same_topology(self, other: Stream) -> None:
        if other._topology is not self._topology:
            raise TopologyError(
                f"Stream '{other._node.label()}' belongs to topology '{other._topology.name}', "
                f"not to '{self._topology.name}'. Only streams that share txids can be combined.",
                number="TXN-107",
            )


class GroupedStream:
    """A stream grouped by columns; without columns, one single group."""

    def __init__(self, topology: Topology, node: Node, keys: Sequence[str]) -> None:
        self._topology = topology
        self._node = node
        self._keys = tuple(keys)

    def aggregate(self, **aggregates: Aggregate) -> Stream:
        """Make one row per group of each batch: the keys, then the named aggregates.

        Raises:
            TopologyError: no aggregate, or a name that is also a key.
        """
        self._check_aggregates(aggregates)
        return Stream(self._topology, Aggregation(self._node, self._keys, dict(aggregates)))

    def persistent_aggregate(
        self,
        state: State,
        *,
        expire_after: Duration | Aggregate | None = None,
        by: str | Aggregate | None = None,
        **aggregates: Aggregate,
    ) -> TxnState:
        """Keep running aggregates per group in `state`, exactly once.

        With `expire_after` keys end: as of a txid, a key has ended if its time plus `expire_after`
        is not after the txid's watermark. No reader shows it any more, and its rows leave the
        table when files are rewritten anyway. A row that comes for it later begins it anew.

        Source: Trident's `GroupedStream.persistentAggregate`; Flink's time-to-live of state, which
        follows the wall clock.

        Args:
            state: where they are kept.
            expire_after: how long a key stays, as "30 days" or a `timedelta`, if each stream behind
                the state has a watermark; None: for ever. An Aggregate is a value of that name.
            by: the time of a key: "last event": the newest event time of its rows; "window end":
                the end of its only window; or a key that is a timestamp or a window. An Aggregate
                is a value of that name.
            aggregates: value column -> aggregate.

        Raises:
            TopologyError: no aggregate, a name that is also a key or reserved, a weak pairing of
                spout and state, a table that is used twice, or keys that cannot end that way.
        """
        ends: dict[str, Any] = {"expire_after": expire_after, "by": by}
        values = {name: one for name, one in ends.items() if isinstance(one, Aggregate)}
        aggregates = {**values, **aggregates}
        rule = {name: one for name, one in ends.items() if name not in values and one is not None}
        if not isinstance(state, State):
            raise TopologyError(
                f"persistent_aggregate() of stream '{self._node.label()}' needs a StateTable, "
                f"not {type(state).__name__}.",
                number="TXN-109",
            )
        self._check_aggregates(aggregates)
        expiry = self._expiry(state, rule) if rule else {}
        committer = state.bind(self._keys, dict(aggregates), **expiry)
        sink = self._topology._add_sink(self._node, committer, state)
        return TxnState(self._topology, state, sink, self._keys, dict(aggregates))

    def _expiry(self, state: State, rule: Mapping[str, object]) -> dict[str, Any]:
        """Return the argument of `State.bind` that lets keys end."""
        if "expiry" not in inspect.signature(state.bind).parameters:
            raise TopologyError(
                f"persistent_aggregate() of stream '{self._node.label()}': keys of a "
                f"{type(state).__name__} cannot end. Use a StateTable, or leave expire_after out.",
                number="TXN-123",
            )
        after, by = rule.get("expire_after"), rule.get("by")
        return {"expiry": expiry_of(self._node, self._keys, after, by)}

    def _check_aggregates(self, aggregates: dict[str, Aggregate]) -> None:
        if not aggregates:
            raise TopologyError(
                f"No aggregate was named for stream '{self._node.label()}'. Write for example "
                "flights=Count().",
                number="TXN-109",
            )
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise TopologyError(
                    f"Value '{name}' of stream '{self._node.label()}' is "
                    f"{type(aggregate).__name__}, not an Aggregate such as Count() or Sum('x').",
                    number="TXN-109",
                )
        _check_unique((*self._keys, *aggregates), self._node)


class TxnState:
    """A state that a topology keeps (Trident: `TridentState`), from `persistent_aggregate`.

    Args:
        sink: the committer and the stream that feeds it.
        keys: the key columns; none for a global aggregate.
        aggregates: value column -> aggregate.
    """

    def __init__(
        self,
        topology: Topology,
        state: State,
        sink: Sink,
        keys: Sequence[str],
        aggregates: dict[str, Aggregate],
    ) -> None:
        self.topology = topology
        self.state = state
        self.sink = sink
        self.keys = tuple(keys)
        self.aggregates = aggregates

    @property
    def name(self) -> str:
        """The table's name, as in `txn status`."""
        return self.sink.name

    def new_values(self) -> Stream:
        """The changes of each txid: keys, values and `prev_<value>` (Trident: `newValuesStream`).

        One row per key that the batch touched; `prev_<value>` is the value as of txid - 1, NULL
        for a new key. Streams below it are computed in the commit turn of the same txid, and the
        tables that they feed are committed with that txid.

        Raises:
            TopologyError: the table has no new values, or a column `prev_<value>` already.
        """
        committer = self.sink.committer
        if isinstance(committer, ChecksChanges):
            committer.require_changes()
        reporting_changes(committer)
        return Stream(self.topology, NewValues(self.sink))

    def publish(
        self,
        path: str | os.PathLike[str],
        *,
        every: Duration = "1 minute",
        columns: Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        top: int | None = None,
        by: str | Sequence[str] | None = None,
        per: str | Sequence[str] | None = None,
        deletion_vectors: bool = False,
        change_feed: bool = False,
    ) -> TxnState:
        """Keep a plain Delta table with keys and final values up, for readers of any kind.

        It has no other columns and each key once, whatever the layout of the state; its log names
        the txid that it shows. It is written beside the commit turns, from the keys that changed,
        and also when nothing comes any more and when the run ends. All tables that are published
        in one round show the same txid.

        Args:
            path: the table's folder, new or empty.
            every: how far it may be behind: "10 txids", or a time as "1 minute".
            columns: all keys and the values to show, in this order; None: all.
            order_by: columns in whose order rows lie in the files, so that readers skip some, each
                with "asc" or "desc" behind it; None: the keys.
            top: only so many rows, the first ones in the order of `by`: of each group by `per`, or
                of all.
            by: the order of the ranking; rows of equal rank are in the order of their keys.
            per: columns of a group.
            deletion_vectors: mark rows that change as deleted, instead of writing their files anew:
                for many keys of which few change, anywhere. A reader has to know Delta's deletion
                vectors (pip install 'txn-spark[vectors]').
            change_feed: each version says which rows it changes, as Delta's change data feed.

        Returns:
            This state.

        Raises:
            TopologyError: no such column, half a ranking, no duration, a folder of another table,
                or a state that cannot be published.
        """
        where = f"publish() of table '{self.name}'"
        committer = self.sink.committer
        if not isinstance(committer, CanPublish):
            raise TopologyError(
                f"{where}: a {type(self.state).__name__} cannot be published. Use a StateTable.",
                number="TXN-109",
            )
        table = committer.published_table(
            os.fspath(path),
            every=_pace(every, where),
            columns=_each_name(columns),
            order_by=_each_name(order_by),
            top=top,
            by=_each_name(by),
            per=_each_name(per),
            deletion_vectors=deletion_vectors,
            change_feed=change_feed,
        )
        self.topology._require_free_place(table.name, None)
        self.sink.published.append(table)
        return self

    def top(
        self, n: int, *, by: str | Sequence[str], per: str | Sequence[str] | None = None
    ) -> Stream:
        """The rankings that each txid changes, whole and as of that txid: for alerts and histories.

        For each group in which a key has changed, its first `n` keys with their values and `rank`,
        from 1. A key whose values are all NULL has no rank, as one that was removed. Streams below
        it are computed in the commit turn, for which the whole state is read each time; where only
        readers need a ranking, `publish(top=)` keeps it up beside the turns.

        Args:
            by: the order, such as "spent desc"; rows of equal rank are in the order of their keys.
            per: the columns of a group: keys or values; None: one ranking of all keys.

        Raises:
            TopologyError: no such column, no number of rows, or a column "rank" already.
        """
        where = f"top() of table '{self.name}'"
        order, groups = _each_name(by) or (), _each_name(per) or ()
        known = (*self.keys, *self.aggregates)
        taken = [f"it has a column '{RANK}' already."] if RANK in known else []
        for problem in (*taken, *ranking_problems(known, n, order, groups)):
            raise TopologyError(f"{where}: {problem}", number="TXN-109")
        changes = self.new_values()._node
        assert isinstance(changes, NewValues)
        return Stream(
            self.topology,
            Ranking(self.sink, self.state, self.aggregates, self.keys, changes, n, order, groups),
        )

    def final_values(self, by: str = "window") -> Stream:
        """The keys and values whose time is over, each exactly once (append mode of Spark).

        A txid hands on what its watermark passes: windows that end at or before it, and did not
        end at or before the watermark of the txid before. Late rows must not change them any
        more, so every stream behind the state has a watermark with late="drop" or "set_aside".
        Streams below it are computed in the commit turn.

        Args:
            by: the key with the time: a window of `sf.window`, whose end counts, or a timestamp.

        Raises:
            TopologyError: no such key, or a stream whose late rows would change final values.
        """
        where = f"final_values() of table '{self.name}'"
        if by not in self.keys:
            keys = ", ".join(self.keys) or "none"
            raise TopologyError(
                f"{where} needs the key with the time, and by={by!r} is none of its keys ({keys}). "
                "Name the one that is a window or a timestamp; without one, add it to group_by().",
                number="TXN-123",
            )
        harm = "late rows would change values that were final"
        require_guarded(self.sink.parent, where, harm)
        return Stream(
            self.topology, FinalValues(self.sink, self.state, self.aggregates, self.keys, by)
        )


def _each_name(names: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(names)


def _pace(every: Duration, where: str) -> tuple[int | None, float | None]:
    """(txids, seconds) that a published table may be behind; one is None."""
    match = _TXIDS.fullmatch(every) if isinstance(every, str) else None
    if match is None:
        return None, microseconds(every, f"{where}: every") / 1_000_000
    return int(match[1]), None


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise TopologyError(
            f"{name!r} cannot name a {what}: it becomes a znode and a key in every table. Use up "
            "to 128 letters, digits, '.', '_' and '-', starting with a letter or digit.",
            number="TXN-104",
        )


def _check_observers(observers: Sequence[object]) -> None:
    for observer in observers:
        if not _is_observer(observer):
            raise TopologyError(
                f"{observer!r} is not an observer: give objects with a method observe(event), as "
                "txn.observers.Observer says.",
                number="TXN-109",
            )


def _is_observer(one: object) -> bool:
    return callable(getattr(one, "observe", None)) and not isinstance(one, type)


def _check_unique(names: Sequence[str], node: Node) -> None:
    for position, name in enumerate(names):
        if not name or name != str(name):
            raise TopologyError(
                f"{name!r} is not a column name (stream '{node.label()}').", number="TXN-104"
            )
        if name in names[:position]:
            raise TopologyError(
                f"Column '{name}' is named twice for stream '{node.label()}'; every key and "
                "every value needs a name of its own.",
                number="TXN-104",
            )
