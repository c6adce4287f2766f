"""Runs a program and holds what it left against the oracle."""

from __future__ import annotations

import math
import re
import shutil
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from committers.state import keys
from tests.committers.aggregates.cases import OutOfRangeError
from tests.differential.build import build
from tests.differential.changes import held, programs_of
from tests.differential.changing import (
    HALF_PUBLISHED,
    NAMES_A_SETTING,
    fill_beside,
    left_alone,
    wrong_marks,
)
from tests.differential.columns import columns_of
from tests.differential.declaration import Life, Program
from tests.differential.life import HungError, LifeRun
from tests.differential.oracle import Expected, expected_tables
from tests.differential.reading import attempts_that_stand, read_as_of, read_bad_rows, read_tables
from tests.differential.session import COMPILED, INTERPRETED
from tests.differential.values import group_key
from txn.errors import TxnError, UserError
from txn.testing.progress import MemoryNodes, MemoryProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Verdict", "judge"]

Row = dict[str, Any]
NARROWED_FROM_BYTES = keys.NARROWED_FROM_BYTES
WATCH_SECS = 90.0
OVERFLOW = re.compile(r"overflow|out of range|leaves the range|cannot be represented", re.I)
TIMED_OUT = re.compile(r"no progress within")
RAW = re.compile(r"Py4J|An error occurred while calling|\bo\d+\.|Traceback|java\.lang")
WAITED = re.compile(r"waited for [\d.]+ s.*(stream|table)", re.S)
REFUSALS = (
    r"Delta allows none of",
    r"names must differ in more than upper and lower case",
    r"AMBIGUOUS_REFERENCE",
    r"COLUMN_ALREADY_EXISTS",  # names that differ in case only, in a session without case
    r"the name is taken by the table's own bookkeeping",
)
"""What a program of the generator may be refused for; any other refusal is a finding."""


@dataclass(frozen=True)
class Verdict:
    """What came of a program.

    Args:
        kind: "equal", "refused", "error" (an error that was due), or a finding: "differs",
            "refused wrongly", "unclear", "failed", "hung", "late".
        what: in a few lines.
    """

    kind: str
    what: str = ""
    seconds: float = 0.0

    @property
    def is_finding(self) -> bool:
        """Whether the product is wrong, or the oracle."""
        return self.kind not in ("equal", "refused", "error")

    @property
    def signature(self) -> str:
        """What stays the same while a program shrinks."""
        words = re.sub(r"t\d+|s\d+|n\d+|\d+", "#", self.what.splitlines()[0] if self.what else "")
        return f"{self.kind}: {words[:60]}"


def judge(program: Program, spark: SparkSession, folder: Path) -> Verdict:
    """Run a program in an empty folder, which is empty again afterwards."""
    folder.mkdir(parents=True)
    lives: list[LifeRun] = []
    try:
        return _judged(program, spark, folder, lives)
    except HungError as error:
        return Verdict("hung", str(error))
    except Exception as error:  # noqa: BLE001 - whatever it was is the finding
        place = traceback.format_exc(limit=-4)
        return Verdict("failed", f"{type(error).__name__}: {str(error)[:600]}\n{place}")
    finally:
        keys.NARROWED_FROM_BYTES = NARROWED_FROM_BYTES
        for life in lives:
            life.let_go()
        shutil.rmtree(folder, ignore_errors=True)


def _judged(program: Program, spark: SparkSession, folder: Path, lives: list[LifeRun]) -> Verdict:
    nodes = MemoryNodes()
    boundaries = [0] * len(program.lives)
    try:
        error = _run(program, spark, folder, lives, nodes, boundaries)
    except TxnError as refusal:  # when it was built
        return _refused(refusal)
    attempts = attempts_that_stand(held(program), folder)
    aside = MemoryProgress(f"d{program.seed}", nodes).quarantined()
    if error is None and any(TIMED_OUT.search(record.error) for record in aside.values()):
        return Verdict("late", "the machine was too busy: a txid is empty because its time was up")
    try:
        expected, broken = expected_tables(program, attempts, (), boundaries)
    except OutOfRangeError as due:
        # A total may leave its range, and the batch be quarantined for it, as was asked.
        if error is None and not aside:
            return _refused_by_reader(program, spark, folder, due)
        if isinstance(error, UserError):
            return _refused(error)
        if error is not None:
            return _told(error, OVERFLOW, "error")
        try:
            expected, broken = expected_tables(program, attempts, aside, boundaries)
        except OutOfRangeError as left:
            return _refused_by_reader(program, spark, folder, left)
    if error is not None:
        return _ended(program, error)
    committed = lives[-1].report.committed_txid if lives[-1].report else 0
    if committed != program.txids:
        return Verdict("late", f"it ended at txid {committed} of {program.txids}")
    if error_of_marks := wrong_marks(program, boundaries, folder):
        return Verdict("differs", error_of_marks)
    alone, last = left_alone(program, boundaries, folder), held(program)
    steps = tuple(step for step in last.steps if step.id not in alone)
    return _compared(last.model_copy(update={"steps": steps}), spark, folder, expected, broken)


def _ended(program: Program, error: TxnError) -> Verdict:
    """Judge the error that ended a life."""
    unknown = any(not source.known for source in program.sources)
    if unknown and WAITED.search(str(error)):
        return _told(error, WAITED, "error")
    if isinstance(error, UserError):
        return _refused(error)
    if OVERFLOW.search(str(error)):  # of a partial total; the order of its rows decides
        return _told(error, OVERFLOW, "error")
    return Verdict("unclear" if RAW.search(str(error)) else "failed", _named(error))


def _refused_by_reader(
    program: Program, spark: SparkSession, folder: Path, due: OutOfRangeError
) -> Verdict:
    """Check that readers get the error of a total that only several txids of a log table exceed."""
    try:
        last = held(program)
        read_tables(last, _session(spark, {}, compiled=False), folder, columns_of(last))
    except Exception as error:  # noqa: BLE001 - by whatever class, it has to name the overflow
        if OVERFLOW.search(str(error)):
            return Verdict("error", _named(error))
    return Verdict("differs", f"no error was told, and {due}")


def _compared(
    program: Program,
    spark: SparkSession,
    folder: Path,
    expected: dict[str, Expected],
    broken: dict[str, list[Row]],
) -> Verdict:
    """Hold the tables, and the rows that were set aside, against the oracle's."""
    plain = _session(spark, {}, compiled=False)
    found = read_tables(program, plain, folder, columns_of(program))
    vacuumed = any("vacuum" in life.then for life in program.lives)
    same = not any(life.changes for life in program.lives)
    pairs: dict[str, tuple[list[Row], list[Row]]] = {}
    for step in program.tables:
        name = step.args.get("pair", f"{step.id} ({_named_table(step.args)})")
        before = pairs.get(name, ([], []))
        pairs[name] = before[0] + expected[step.id].rows, before[1] + found[step.id]
        for txid, (rows, columns) in expected[step.id].former.items():
            if rows and not vacuumed:
                held_then = read_as_of(step, txid, plain, folder, columns)
                pairs[f"{name} as of txid {txid}"] = rows, held_then
        for txid, rows in expected[step.id].as_of.items() if same and not vacuumed else ():
            held_then = read_as_of(step, txid, plain, folder, columns_of(program)[step.id])
            pairs[f"{name} as of txid {txid}"] = rows, held_then
    aside = read_bad_rows(program, plain, folder)
    for rule, rows in aside.items():
        pairs[f"rows set aside by {rule}"] = broken.get(rule, []), rows
    for name, (due, found_rows) in pairs.items():
        if difference := _difference(due, found_rows):
            return Verdict("differs", f"{name} {difference}")
    return Verdict("equal")


def _run(
    program: Program,
    spark: SparkSession,
    folder: Path,
    lives: list[LifeRun],
    nodes: MemoryNodes,
    boundaries: list[int],
) -> TxnError | None:
    """Live through all lives; the error that ended one of them, or None.

    Args:
        boundaries: gets the newest txid before each life.
    """
    keys.NARROWED_FROM_BYTES = 0 if program.large else NARROWED_FROM_BYTES
    session = _session(spark, program.conf, compiled=program.compiled)
    programs, reached = programs_of(program), 0
    for number, (life, changed) in enumerate(zip(program.lives, programs, strict=True)):
        fill_beside(changed, life, session, folder, nodes)
        # Half of them start without the settings first; a generation would not be adopted then.
        refills = any(change.op == "refill" for change in life.changes)
        asked = program.seed % 2 and life.changes and not refills
        bare = changed.model_copy(update={"config": programs[number - 1].config})
        lives.append(run := _live(bare if asked else changed, life, session, folder, nodes))
        if asked and run.error is not None and NAMES_A_SETTING.search(str(run.error)):
            lives.append(run := _live(changed, life, session, folder, nodes))
        if run.error is not None and (txid := HALF_PUBLISHED.search(str(run.error))):
            # Whoever died before its first batch has changed nothing yet.
            former = programs[max(reached - 1, 0)], Life(until=int(txid[1]))
            lives.append(run := _live(*former, session, folder, nodes))
            if run.error is None:
                lives.append(run := _live(changed, life, session, folder, nodes))
        if run.began_at is not None:  # whoever died before that began at the same txid
            boundaries[reached:] = [run.began_at] * (len(boundaries) - reached)
            reached = number + 1
        if run.error is not None:
            assert isinstance(run.error, TxnError)
            return run.error
        if not run.died:
            _meanwhile(changed, life, folder)
    return None


def _live(
    program: Program, life: Life, session: SparkSession, folder: Path, nodes: MemoryNodes
) -> LifeRun:
    topology = build(program, f"d{program.seed}", folder)
    until = life.until or "caught_up"
    run = LifeRun(topology, session, nodes, until, life.crash, life.nth)
    run.live(WATCH_SECS)
    return run


def _session(spark: SparkSession, conf: dict[str, str], *, compiled: bool) -> SparkSession:
    """A user's session, which no other program has touched."""
    session = spark.newSession()
    # One program in eight is compiled, as a user's is; that takes most of its time.
    for key, value in {**(COMPILED if compiled else INTERPRETED), **conf}.items():
        session.conf.set(key, value)
    return session


def _meanwhile(program: Program, life: Life, folder: Path) -> None:
    """What somebody does to the tables between two runs."""
    for what in life.then:
        kept = (path.parent for path in folder.glob(f"d{program.seed}_*/_delta_log"))
        for path in (*(folder / step.id for step in program.tables), *kept):
            if not (path / "_delta_log").exists():
                continue
            table = DeltaTable(path)
            if what == "optimize":
                table.optimize.compact()
            elif what == "vacuum":
                table.vacuum(0, dry_run=False, enforce_retention_duration=False)


# --- errors ----------------------------------------------------------------------------------


def _refused(error: TxnError) -> Verdict:
    if RAW.search(str(error)) or len(str(error)) < 40:
        return Verdict("unclear", _named(error))
    if not isinstance(error, UserError):
        return Verdict("failed", _named(error))
    known = any(re.search(reason, str(error)) for reason in REFUSALS)
    return Verdict("refused" if known else "refused wrongly", _named(error))


def _told(error: TxnError, words: re.Pattern[str], kind: str) -> Verdict:
    told = words.search(str(error)) and not RAW.search(str(error))
    return Verdict(kind if told else "unclear", _named(error))


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:1200]}"


def _named_table(args: dict[str, Any]) -> str:
    return f"{args.get('layout', 'append')}, {args['semantics']}"


# --- rows ------------------------------------------------------------------------------------


def _difference(expected: list[Row], found: list[Row]) -> str | None:
    """The first rows that are in one and not in the other."""
    missing = [_Comparable(row) for row in expected]
    surplus = []
    for row in (_Comparable(row) for row in found):
        for place, other in enumerate(missing):
            if row == other:
                del missing[place]
                break
        else:
            surplus.append(row)
    if not missing and not surplus:
        return None
    what = f"has {len(found)} rows and should have {len(expected)}"
    lacks = "".join(f"\n  lacks   {one.row}" for one in missing[:4])
    return f"{what}:{lacks}" + "".join(f"\n  has     {one.row}" for one in surplus[:4])


class _Comparable:
    """A row; numbers that were computed in another order are equal up to rounding."""

    def __init__(self, row: Row) -> None:
        self.row = dict(sorted(row.items()))

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Comparable)
        return self.row.keys() == other.row.keys() and all(
            _same(value, other.row[name]) for name, value in self.row.items()
        )

    __hash__ = None  # type: ignore[assignment]


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        if math.isfinite(one) and math.isfinite(two):
            return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-12)
        return bool(group_key(one) == group_key(two))
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(_same, one, two))
    return type(one) is type(two) and one == two
