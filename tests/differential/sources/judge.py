"""Holds what was read against the oracle: every record in one place, with the oracle's values."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.differential.judge import Verdict
from tests.differential.sources.declaration import Case
from tests.differential.sources.expect import expected_of, expected_values
from tests.differential.sources.records import ANY, Bad, Expected, FileExpected, Good, plain, same
from tests.differential.sources.run import Found, read_files, read_values
from tests.differential.sources.whole import read_through_a_topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["judge", "judged_files"]


def judge(case: Case, spark: SparkSession, folder: Path) -> Verdict:
    """Read a case in an empty folder, which is gone afterwards."""
    try:
        if case.through == "kafka":
            return _judged_values(case, read_values(case, spark))
        read = read_files if case.through == "files" else read_through_a_topology
        return judged_files(case, read(case, spark, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judged_values(case: Case, found: Found) -> Verdict:
    assert case.schema_ is not None
    expected = expected_values(case, case.schema_)
    if found.error is not None:
        return _failed(case, found, expected, (), ("t-0",))
    if case.bad_rows == "fail" and any(one.must_be_bad for one in expected):
        return Verdict("differs", "no error for a value that does not parse")
    if case.bad_rows == "fail":
        rows = [row for part in found.rows.values() for row in part]
        return _matched("the topic", expected, rows, None) or _text(found)
    for offset, one in enumerate(expected):
        rows = found.rows.get(str(offset), [])
        texts = found.bad.get(str(offset), [])
        if verdict := _matched(f"offset {offset}", [one], rows, texts):
            return verdict
    return _text(found)


def judged_files(case: Case, found: Found) -> Verdict:
    """The verdict on what a reading of files has found."""
    if not found.columns:
        if found.error is None:
            return Verdict("differs", "zero columns")
        return _refusal(found)
    expected = {file.name: expected_of(case, file, found.columns) for file in case.files}
    if found.error is not None:
        ended = [expected[name] for name in found.attempted]
        records = [one for file in ended for one in file.records]
        refusals = [why for file in ended for why in file.refusals]
        return _failed(case, found, records, refusals, found.attempted)
    whole = {name for name, file in expected.items() if _is_aside(name, file, found)}
    for name, file in expected.items():
        if file.must and not (name in whole or name in found.told):
            return Verdict("differs", f"{name} was read, and should be refused: {file.refusals}")
    expected = {name: file for name, file in expected.items() if name not in whole}
    if case.bad_rows == "fail" or case.through == "topology":
        return _judged_together(case, found, expected)
    for name, file in expected.items():
        if file.must:
            continue
        verdict = _matched(name, file.records, found.rows.get(name, []), found.bad.get(name, []))
        if verdict or (verdict := _silent(name, file, found)):
            return verdict
    return _text(found)


def _is_aside(name: str, file: FileExpected, found: Found) -> bool:
    """Whether a file that may be refused is one row of the bad ones, alone and as a whole."""
    texts = found.bad.get(name, [])
    whole = len(texts) == 1 and re.fullmatch(rf".*/{re.escape(name)} \(\d+ bytes\)", texts[0])
    return bool(file.refusals and whole) and not found.rows.get(name)


def _judged_together(case: Case, found: Found, expected: dict[str, FileExpected]) -> Verdict:
    """All files at once: with "fail", and in a table, rows do not say which file they are of."""
    files = [file for file in expected.values() if not file.must]
    records = [one for file in files for one in file.records]
    aside = [text for name in expected for text in found.bad.get(name, [])]
    texts = aside if case.through == "topology" else None
    if texts is None and any(one.must_be_bad for one in records):
        bad = next(one for one in records if one.must_be_bad)
        return Verdict("differs", f"no error for a record that does not parse: {bad.what!r}")
    rows = [row for part in found.rows.values() for row in part]
    if verdict := _matched("the files", records, rows, texts):
        return verdict
    silent = [_silent(name, file, found) for name, file in expected.items() if not file.must]
    return next(filter(None, silent), _text(found))


def _silent(name: str, file: FileExpected, found: Found) -> Verdict | None:
    if not file.told or name in found.told:
        return None
    if "UTF-8" in file.told and any("\ufffd" in text for text in found.bad.get(name, ())):
        return None  # set aside with its place, or counted, is told
    return Verdict("silent", f"{name} has {file.told}, and nothing is told")


def _text(found: Found) -> Verdict:
    if found.invalid:
        return Verdict("not UTF-8", f"text that is not UTF-8 in {sorted(found.invalid)}")
    return Verdict("equal")


def _failed(
    case: Case, found: Found, records: Sequence[Expected], refusals: Sequence[str], named: Any
) -> Verdict:
    """An error is right if something is bad, or may be refused, and it names the place."""
    words = str(found.error)
    due = bool(refusals) or (case.bad_rows == "fail" and any(one.may_be_bad for one in records))
    if not due:
        return Verdict("refused wrongly", _named(found.error))
    if not any(name in re.sub("%20", " ", words) for name in named):
        return Verdict("unclear", f"no file is named: {_named(found.error)}")
    return Verdict("refused", _named(found.error))


def _refusal(found: Found) -> Verdict:
    """No columns were ever known: the refusal is one of the product's own."""
    from txn.errors import TxnError

    kind = "refused" if isinstance(found.error, TxnError) else "unclear"
    return Verdict(kind, _named(found.error))


def _named(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:900]}"


# --- records ---------------------------------------------------------------------------------


def _matched(
    where: str, expected: Sequence[Expected], rows: list[Any], texts: list[str] | None
) -> Verdict | None:
    """Give every record one of its outcomes; what is left over on either side is a finding."""
    rows, left = list(rows), None if texts is None else list(texts)
    lost = [
        one
        for one in sorted(expected, key=_choices)
        if not any(_take(outcome, rows, left) for outcome in one.outcomes)
    ]
    if not lost and not rows and not left:
        return None
    said = "".join(f"\n  lacks   {_shown(one)}" for one in lost[:4])
    said += "".join(f"\n  has     {row}" for row in rows[:4])
    said += "".join(f"\n  aside   {text!r}" for text in (left or [])[:4])
    kind = "lacks" if lost else "has"
    return Verdict("differs", f"{kind} records it should{'' if lost else ' not'}: {where}{said}")


def _choices(one: Expected) -> tuple[bool, int]:
    """Who takes any value comes last, so that it takes none of the others' rows."""
    goods = [item for outcome in one.outcomes for item in outcome if isinstance(item, Good)]
    any_value = any(value is ANY for good in goods for each in good.fields for value in each.values)
    return any_value, len(one.outcomes)


def _shown(one: Expected) -> str:
    kinds = " | ".join(
        "+".join(
            "bad" if isinstance(item, Bad) else str([field.values for field in item.fields])
            for item in outcome
        )
        for outcome in one.outcomes
    )
    return f"{one.what[:200]!r} as {kinds[:600]}"


def _take(outcome: Sequence[Good | Bad], rows: list[Any], texts: list[str] | None) -> bool:
    """Take the parts of an outcome out of what was found, if all are there."""
    rest_rows, rest_texts = list(rows), None if texts is None else list(texts)
    for item in outcome:
        if isinstance(item, Bad):
            if rest_texts is None:
                return False
            place = next((n for n, t in enumerate(rest_texts) if _is_text(item.text, t)), None)
            if place is None:
                return False
            del rest_texts[place]
            continue
        place = next((n for n, row in enumerate(rest_rows) if _is_row(item, row)), None)
        if place is None:
            return False
        del rest_rows[place]
    rows[:] = rest_rows
    if texts is not None and rest_texts is not None:
        texts[:] = rest_texts
    return True


def _is_text(expected: str, found: str) -> bool:
    """The same text; the number of NULs in it is of no account."""
    one, other = (plain(text).replace("\x00", "").strip(" \t\r\n") for text in (expected, found))
    return one == other


def _is_row(good: Good, row: tuple[Any, ...]) -> bool:
    return len(good.fields) == len(row) and all(
        any(same(value, one) for value in field.values)
        for field, one in zip(good.fields, row, strict=True)
    )
