"""The causes of a Spark error: one layer per Java exception in its chain.

Python sees the outermost exception and one text with all stack traces of the chain. Words in that
text prove nothing, because any trace may mention any part of Spark. The exceptions themselves have
types, and often Spark's error conditions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any

from txn.spark.differences import (
    condition_of,
    java_exception_of,
    without_error_log,
)
from txn.text import first_line, last_users_frame, printable

__all__ = ["Cause", "cause_line", "causes", "in_one_line", "is_of_spark", "without_copies"]

_DEEPEST = 20
"""The most layers to read: no real chain is this deep, but a broken one may be a circle."""
_LONGEST = 600
"""The most characters of one layer's message in a failure line."""
_WRITING = "TASK_WRITE_FAILED"
_WRAPPERS = ("FAILED_READ_FILE", "STAGE_MATERIALIZATION_MULTIPLE_FAILURES", _WRITING)
"""Conditions that only wrap another error."""
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+;?")
_AFTER_MESSAGE = re.compile(
    r";\n|\n\s*(?:at |== |Driver stacktrace|Caused by: |JVM stacktrace|Parse Mode: )"
)
"""The start of the plan, stack trace or SQL that Java appends to its message."""
_CALLED_FROM = re.compile(r"^== .* ==\n(?:.*\n)?\s*(\S.*:\d+)\s*$", re.MULTILINE)
_SQL = re.compile(r"^== SQL ?\(.* ==\n(.+)$", re.MULTILINE)
_PYTHON_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class Cause:
    """One exception of a chain, the outermost first."""

    types: tuple[str, ...]
    """Full names of its Java class and that class's superclasses."""
    message: str = ""
    condition: str = ""
    """Spark's error condition, such as "CAST_INVALID_INPUT"; empty if it has none."""
    path: str = ""
    """The file concerned, if Spark names one."""
    status: int | None = None
    """The HTTP status of the response that it reports."""

    @property
    def name(self) -> str:
        """The class without its package."""
        return self.types[0].rpartition(".")[2] if self.types else "an error"

    @property
    def line(self) -> str:
        """Class, condition and message, in one line."""
        condition = f" [{self.condition}]" if self.condition else ""
        text = self.message.removeprefix(f"[{self.condition}]").strip()
        frames = _PYTHON_FRAME.findall(text) if self.condition == "PYTHON_EXCEPTION" else []
        if frames:
            # A Python traceback: its last line is the error, and the user's last frame the place.
            lines = [one for one in _SQLSTATE.sub("", text).splitlines() if one.strip()]
            last = last_users_frame([file for file, _ in frames])
            file, line = frames[-1 if last is None else last]
            text = f"{lines[-1].strip()} ({file}:{line})"
        else:
            called = _CALLED_FROM.search(text)
            text = in_one_line(text)
            # Spark names the line that made the expression; a line of txn helps nobody.
            if called and last_users_frame([called[1]]) is not None:
                text += f" (called from {called[1].strip()})"
            elif fragment := _SQL.search(self.message):
                text += f" (in SQL: {fragment[1].strip()})"
        return f"{self.name}{condition}: {text}" if text else f"{self.name}{condition}"


def in_one_line(message: str) -> str:
    """A message of Spark or Java in one line, without the plan, SQL and stack trace after it.

    Spark and Delta break their sentences over several lines.
    """
    words = _SQLSTATE.sub(
        "", " ".join(_AFTER_MESSAGE.split(message.strip(), maxsplit=1)[0].split())
    )
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]} ..."


def is_of_spark(error: BaseException) -> bool:
    """Return whether Spark or Py4J raised `error`."""
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


def causes(error: BaseException) -> tuple[Cause, ...]:
    """The chain of a Spark error; empty for any other error, or if the JVM is gone."""
    if not is_of_spark(error):
        return ()
    java = java_exception_of(error)
    chain: list[Cause] = []
    while java is not None and len(chain) < _DEEPEST:
        cause = _result_or_none(partial(_cause, java))
        if cause is None:
            break  # the JVM is gone
        chain.append(cause)
        java = _call(java, "getCause")
    condition = _result_or_none(partial(condition_of, error))
    if not chain and condition:
        # Spark Connect: the server's error, without the server's objects.
        chain = [Cause((type(error).__name__,), str(error).strip(), str(condition))]
    return tuple(chain)


def _describe_chain(chain: tuple[Cause, ...]) -> str:
    """A chain in one line: the main error, its file, and the root cause."""
    inner = chain[-1]
    specific = (c for c in chain if c.condition and not c.condition.startswith(_WRAPPERS))
    main = next(specific, inner)
    # The path of a task that could not write is the table's, which the message names already.
    places = (c.path for c in chain if not c.condition.startswith(_WRITING))
    place = next(filter(None, places), "")
    more = [f"in file {place}"] if place and place not in main.line else []
    more += [f"caused by {inner.line}"] if inner is not main else []
    return f"{main.line} ({'; '.join(more)})" if more else main.line


def cause_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message; for Spark's errors, the cause.

    Printable: logs, traces and nodes refuse lone surrogates, which a file's name may have.
    """
    chain = causes(error)
    if chain:
        return printable(_describe_chain(chain))
    message = str(error).strip()
    if is_of_spark(error) and message.startswith("An error occurred while calling"):
        # The Java object no longer answers; its text is below the name of the call.
        message = message.partition("\n")[2].lstrip(": ") or message
    return first_line(error, message)


def without_copies() -> None:
    """Stop PySpark from also logging the errors that it raises, as lines of JSON on stderr."""
    without_error_log(("DataFrameQueryContextLogger", "SQLQueryContextLogger"))


def _cause(java: Any) -> Cause:
    types, kind = [], java.getClass()
    while kind is not None and kind.getName() != "java.lang.Object":
        types.append(str(kind.getName()))
        kind = kind.getSuperclass()
    # Only Spark's own exceptions have these; Azure's and Google's have the response's status.
    condition = _result_or_none(partial(condition_of, java))
    parameters = _call(java, "getMessageParameters") if condition else None
    path = _result_or_none(lambda: parameters.get("path")) if parameters is not None else None
    status = _call(java, "getStatusCode")
    return Cause(
        tuple(types),
        str(java.getMessage() or ""),
        str(condition or ""),
        str(path or ""),
        status if isinstance(status, int) else None,
    )


def _call(java: Any, method: str) -> Any:
    return _result_or_none(partial(methodcaller(method), java))


def _result_or_none(call: Callable[[], Any]) -> Any:
    """Call a Java object; None if it has no such method or no longer answers."""
    try:
        return call()
    except Exception:  # noqa: BLE001 - Py4J's own errors, of several kinds, and those of its sockets
        return None
