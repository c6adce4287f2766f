"""Scenarios of the coordinator: what it hears, flush left; what it orders, indented beneath.

    scenario transactional_failure_replays_one_txid_only
    # Only the failed batch is replayed.
    begin 3
    failed 1:0
        Cancel 1:0
        ScheduleRetry 1:1 failures=1

Indented lines are output. `TXN_REWRITE=1 pytest tests/protocol/test_scenarios.py`, or
`python -m tests.protocol.scenarios --rewrite`, puts what the coordinator does in their place: read
the diff, and commit it only if you understand what caused it. Nothing beneath an event means that
it orders nothing; `unchanged`, that it leaves the very same state, too.

Before a run begins (defaults: one transactional stream t, max_spout_pending=3, no groups):

    given streams=t,o max_batch_attempts=2    a stream whose name begins with o is opaque
    given delay=10 idle_after=2               every stream has a watermark
    committed 4 t=40 o=50                     COMMITTED as ZooKeeper has it
    open 5:2 t=50 replay_of=3 in_a_table      an open START; some table holds the txid
    start                                     begin, recovering what is committed and open
    begin 3                                   the same without output, then plan 1:0, 2:0 and 3:0,
                                              where every stream reads the number of the txid
    begin 4 in_a_group                        then process all, and publish 1:0: the group of the
                                              others has its turn

Then facts: `plan` (an answer; the interval is over at once), `answer`, `plan_failed`,
`plan_refused`, `due`, `processed`, `failed`, `published`, `group_failed`, `retry_due`, `stop`,
`halted`; see `Play`.
Several attempts are facts one after the other, but `published` and `group_failed` are about a
group. On demand: `phases`, `batch TXID`, `state`.

`given streams=t|o` plays the scenario once for each. An order that only one of them gives has the
variant in front: `[o] Cancel 2:0`. There, `all` stands for every stream, in facts and in orders.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from itertools import product, takewhile
from pathlib import Path
from typing import Any

from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.errors import StateError
from txn.protocol.coordinator import recovered_state, start, step
from txn.protocol.event_time import WatermarkRule
from txn.protocol.events import (
    BatchFailed,
    BatchProcessed,
    BatchPublished,
    CoordinatorState,
    Event,
    GroupFailed,
    Halted,
    PlanDue,
    PlanFailed,
    PlanMade,
    PlanRefused,
    RetryDue,
    SchedulePlan,
    StopRequested,
)
from txn.protocol.records import BatchRecord, CommittedRecord

__all__ = ["FOLDER", "Play", "Scenario", "attempt_of", "rewrite", "scenarios"]

FOLDER = Path(__file__).parent
INDENT = "    "
DEFAULTS = {"streams": "t", "max_spout_pending": 3, "max_group_commit": 1}
NOT_OF_THE_CONFIG = ("streams", "until", "grouped", "delay", "idle_after")
ATTEMPT = re.compile(r"\d+:\d+")
WORD = re.compile(r"\d+(:\d+)?|blocked|published|in_a_table|in_a_group")
NAMED = {"all", "error", "lacks", "quarantined", "replay_of", "watermark", "d"}


@dataclass(frozen=True)
class Scenario:
    """One scenario as it stands in its file."""

    file: Path
    name: str
    text: str

    @property
    def doc(self) -> str:
        """The sentences beneath its name, in one line."""
        said = re.match(r"scenario .*\n((?:#.*\n)*)", self.text)
        return " ".join(line.lstrip("# ") for line in said[1].splitlines()) if said else ""

    def played(self) -> str:
        """Its text, with what the coordinator does in the place of the output."""
        lines = [line for line in self.text.splitlines() if not line.startswith(INDENT)]
        outputs = {label: list(_outputs(lines, each)) for label, each in _variants(lines).items()}
        told = []
        for number, line in enumerate(lines):
            told += [line, *_merged({label: each[number] for label, each in outputs.items()})]
        return "\n".join([*told, ""])


def scenarios() -> list[Scenario]:
    """Every scenario of every file, in their order."""
    return [each for file in sorted(FOLDER.glob("*.txt")) for each in _read(file)[1]]


def rewrite(folder: Path = FOLDER) -> list[Path]:
    """Put what the coordinator does in the place of all output; the files that this changes."""
    changed = []
    for file in sorted(folder.glob("*.txt")):
        head, found = _read(file)
        text = "".join([head, *(each.played() for each in found)])
        if text != file.read_text("utf-8"):
            file.write_text(text, "utf-8")
            changed.append(file)
    return changed


def _read(file: Path) -> tuple[str, list[Scenario]]:
    head, *chunks = re.split(r"^(?=scenario )", file.read_text("utf-8"), flags=re.MULTILINE)
    return head, [Scenario(file, text.split(maxsplit=2)[1], text) for text in chunks]


# --- variants --------------------------------------------------------------------------------


def _given(line: str) -> dict[str, str]:
    return dict(_pairs(shlex.split(line)[1:])) if line.startswith("given ") else {}


def _variants(lines: Sequence[str]) -> dict[str, dict[str, str]]:
    """Label -> settings, for every combination of the `|` alternatives in `given` lines."""
    several = {k: v.split("|") for line in lines for k, v in _given(line).items() if "|" in v}
    return {
        " ".join(chosen): dict(zip(several, chosen, strict=True))
        for chosen in product(*several.values())
    }


def _outputs(lines: Sequence[str], chosen: Mapping[str, str]) -> Iterator[list[str]]:
    """What comes out beneath each line, in one variant."""
    play = Play(chosen)
    for line in lines:
        if line.startswith("given "):
            play = Play({**_given(line), **chosen}, has_all="streams" in chosen)
        is_command = bool(line) and not line.startswith(("#", "scenario ", "given "))
        yield play.command(line) if is_command else []


def _merged(outputs: Mapping[str, list[str]]) -> list[str]:
    """The output of all variants: what they begin with in common, then the rest behind labels."""
    steps = zip(*outputs.values(), strict=False)
    shared = [lines[0] for lines in takewhile(lambda lines: len(set(lines)) == 1, steps)]
    labels: dict[tuple[str, ...], list[str]] = {}
    for label, output in outputs.items():
        labels.setdefault(tuple(output[len(shared) :]), []).append(label)
    rest = [f"[{' | '.join(which)}] {line}" for lines, which in labels.items() for line in lines]
    return [f"{INDENT}{line}" for line in (*shared, *rest)]


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        key, _, value = word.partition("=")
        yield key, value


# --- playing ---------------------------------------------------------------------------------


def attempt_of(name: str) -> TransactionAttempt:
    """The attempt that prints as `name`."""
    txid, attempt_id = name.split(":")
    return TransactionAttempt(int(txid), int(attempt_id))


class Play:
    """A coordinator that is told facts, line by line.

    Args:
        given: the settings of the run, as words.
        has_all: "all" is written for every stream.
    """

    def __init__(self, given: Mapping[str, str], *, has_all: bool = False) -> None:
        self.settings = {key: _value(value) for key, value in given.items()}
        self.streams = tuple(given.get("streams", DEFAULTS["streams"]).split(","))
        self.has_all = has_all
        self.committed = CommittedRecord()
        self.batches: list[BatchRecord] = []
        self.in_a_table: list[int] = []
        self.state: CoordinatorState | None = None

    def command(self, line: str) -> list[str]:
        """Carry out one line; what comes out, or how it is refused."""
        name, *words = shlex.split(line)
        names, named = _arguments(words)
        strange = [word for word in names if not WORD.fullmatch(word)]
        strange += set(named) - set(self.streams) - NAMED
        if strange or not hasattr(self, f"do_{name}"):
            raise SyntaxError(f"{line!r}: what is {strange or name}?")
        try:
            return getattr(self, f"do_{name}")(names, named)
        except (StateError, ValueError) as error:
            return [f"{type(error).__name__}: {error}"]

    def hear(self, *events: Event) -> list[str]:
        """Tell facts one after the other."""
        return [line for event in events for line in self._take(lambda s, e=event: step(s, e))]

    def _take(self, transition: Callable[[CoordinatorState], Any]) -> list[str]:
        if self.state is None:
            raise SyntaxError("the run has not begun: `start` or `begin` comes first")
        before = self.state
        self.state, self.orders = transition(before)
        if self.state is before and not self.orders:
            return ["unchanged"]
        return [self.shown(order) for order in self.orders]

    # --- before the run ------------------------------------------------------------------------

    def do_committed(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """COMMITTED, and the positions as of it."""
        self.committed = CommittedRecord(txid=int(names[0]), spouts=self.metadata(named))
        return []

    def do_open(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """One open START."""
        at = attempt_of(names[0])
        special = {key: named.pop(key, None) for key in ("quarantined", "replay_of", "watermark")}
        spouts = self.metadata(named)
        record = BatchRecord(txid=at.txid, attempt=at.attempt_id, epoch=1, spouts=spouts, **special)
        self.batches.append(record)
        self.in_a_table += [at.txid] * ("in_a_table" in names)
        return []

    def do_start(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """Begin the run; a second time, the state is as it was left."""
        if self.state is None:
            settings = {**DEFAULTS, **self.settings}
            config = {k: v for k, v in settings.items() if k not in NOT_OF_THE_CONFIG}
            self.state = recovered_state(
                self.committed,
                self.batches,
                streams=self.streams,
                opaque_streams=[name for name in self.streams if name.startswith("o")],
                config=TopologyConfig(**config),
                until=settings.get("until", "forever"),
                published=self.in_a_table,
                grouped=settings.get("grouped", True),
                watermark_rules=[
                    WatermarkRule(name, settings["delay"], settings.get("idle_after"))
                    for name in self.streams
                    if "delay" in settings
                ],
            )
        return self._take(start)

    def do_begin(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """Begin, and plan so many txids; `in_a_group`: they lag behind the first commit."""
        self.do_start([], {})
        attempts = [f"{txid}:0" for txid in range(1, int(names[0]) + 1)]
        for txid, attempt in enumerate(attempts, 1):
            self.do_plan([attempt], {"all": txid})
        if "in_a_group" in names:
            self.do_processed(attempts, {})
            self.do_published(attempts[:1], {})
        return []

    # --- facts ---------------------------------------------------------------------------------

    def do_answer(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """The spouts answer, or the record of a quarantined txid: `replay_of=3`.

        `d=7`: version 7 is the newest of the one table that a stream looks rows up in.
        """
        replay_of = named.pop("replay_of", None)
        tables = {"d": named.pop("d")} if "d" in named else {}
        return self.hear(PlanMade(attempt_of(names[0]), self.metadata(named), replay_of, tables))

    def do_plan(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """The spouts answer, and the interval is over at once."""
        output = self.do_answer(names, named)
        return output + (self.do_due([], {}) if SchedulePlan(idle=False) in self.orders else [])

    def do_plan_failed(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """The spouts cannot answer; `blocked`: a source is away."""
        error, blocked = named.get("error", "no broker"), "blocked" in names
        return self.hear(*(PlanFailed(at, error, blocked) for at in _attempts(names)))

    def do_plan_refused(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """A spout raises what no replay mends."""
        error = named.get("error", "no such column")
        return self.hear(*(PlanRefused(at, error) for at in _attempts(names)))

    def do_due(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """The interval is over."""
        return self.hear(PlanDue())

    def do_processed(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """The processing phase is acked; `t=57` is the newest event time of its rows of t."""
        newest = {stream: {"": at} for stream, at in self.metadata(named).items()}
        return self.hear(*(BatchProcessed(at, newest) for at in _attempts(names)))

    def do_failed(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """The attempt failed; `blocked`: a source is away; `lacks=t,u`: so are their columns."""
        error, blocked = named.get("error", "disk on fire"), "blocked" in names
        lacks = frozenset(named["lacks"].split(",")) if "lacks" in named else frozenset()
        return self.hear(*(BatchFailed(at, error, blocked, lacks) for at in _attempts(names)))

    def do_published(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """The commit turn of all these ended well; the table's version is the last txid."""
        *earlier, last = _attempts(names)
        return self.hear(BatchPublished(last, {"table": last.txid}, tuple(earlier)))

    def do_group_failed(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """The commit turn of all these failed; `published`: some table may hold them."""
        return self.hear(GroupFailed(_attempts(names), "disk on fire", "published" in names))

    def do_retry_due(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """The back-off before this attempt is over."""
        return self.hear(*(RetryDue(at) for at in _attempts(names)))

    def do_stop(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """Somebody asks for a clean stop."""
        return self.hear(StopRequested())

    def do_halted(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """Something happened that no replay mends."""
        return self.hear(Halted(named.get("error", "lost leadership")))

    # --- the state, on demand ------------------------------------------------------------------

    def do_phases(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """Where every open attempt stands."""
        batches = self.state.batches if self.state else {}
        each = [f"{batches[txid].attempt} {batches[txid].phase.value}" for txid in sorted(batches)]
        return [", ".join(each) or "nothing is open"]

    def do_batch(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """All that is known of some txids, as far as it is not the default."""
        assert self.state
        return [self.shown(self.state.batches[int(name)]) for name in names]

    def do_state(self, names: list[str], named: dict[str, Any]) -> list[str]:
        """All that is known beside the batches, as far as it is not the default."""
        assert self.state
        return [self.shown(self.state, "batches")]

    # --- words ---------------------------------------------------------------------------------

    def metadata(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """What is named, by stream."""
        return dict.fromkeys(self.streams, named["all"]) if "all" in named else dict(named)

    def shown(self, value: Any, *but: str) -> str:
        """A value of the vocabulary in one line: every field that is not the default."""
        words = [type(value).__name__]
        for field in fields(value):
            held = getattr(value, field.name)
            default = field.default_factory() if callable(field.default_factory) else field.default
            if field.name in but or (default is not MISSING and held == default):
                continue
            is_bare = isinstance(held, TransactionAttempt | Enum) or field.name == "metadata"
            words.append(self.word(held) if is_bare else f"{field.name}={self.word(held)}")
        return " ".join(words)

    def word(self, value: Any) -> str:
        """A value in one word, as far as possible."""
        if isinstance(value, TransactionAttempt):
            return str(value)
        if isinstance(value, Enum):
            return str(value.value)
        if isinstance(value, Mapping):
            first = next(iter(value.values()), None)
            if self.has_all and value == dict.fromkeys(self.streams, first):
                value = {"all": first}
            return "{" + ", ".join(f"{k}={self.word(v)}" for k, v in value.items()) + "}"
        if isinstance(value, frozenset):
            return self.word(tuple(sorted(value)))
        if self.has_all and value == self.streams:
            return "(all)"
        if isinstance(value, tuple):
            is_pair = any(isinstance(each, Mapping) for each in value)
            inner = (" " if is_pair else ", ").join(self.word(each) for each in value)
            return inner if is_pair else f"({inner})"
        if isinstance(value, str) and re.fullmatch(r"\w+", value):
            return value
        return json.dumps(value) if isinstance(value, str | list) else str(value)


def _attempts(names: Sequence[str]) -> tuple[TransactionAttempt, ...]:
    return tuple(attempt_of(name) for name in names if ATTEMPT.fullmatch(name))


def _arguments(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """(bare words, named values)."""
    named = {key: _value(value) for key, value in _pairs([word for word in words if "=" in word])}
    return [word for word in words if "=" not in word], named


def _value(word: str) -> Any:
    if word == "None":
        return None
    try:
        return json.loads(word)
    except ValueError:
        return word
