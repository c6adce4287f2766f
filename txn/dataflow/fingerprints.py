"""A fingerprint of what a user's function computes, the same in every process.

Two fingerprints differ if the bytecode differs, or the constants, defaults and closure values that
are plain data, or those of any function of the user's own that is reached from there, by a global
name, a closure, a decorator, a partial, a method or an attribute. Comments, docstrings, line
numbers, names of local variables and the name of the file do not count.

What has no stable form (a client, a lock, a session) counts by its type alone, and a collection of
more than `LARGE` by its length; a function written in C has no fingerprint at all. Fingerprints of
two releases of Python tell nothing: `PYTHON`.
"""

from __future__ import annotations

import dis
import functools
import json
import re
import sys
import types
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from hashlib import blake2b
from pathlib import PurePath
from typing import Any
from uuid import UUID

from txn.interfaces import Aggregate
from txn.text import is_installed, is_the_users

__all__ = ["LARGE", "PYTHON", "fingerprint"]

LARGE = 10_000
"""Most members of a list, set or dict that are looked at: a start is to take no time."""

PYTHON = f"{sys.implementation.cache_tag} {sys.version.split()[0]}" + (
    f" -{'O' * sys.flags.optimize}" if sys.flags.optimize else ""
)
"""The Python whose bytecode is read: only fingerprints of an equal one can be compared."""

_PLAIN = (
    str, bool, int, float, complex, bytes, bytearray, type(None), type(...), range, slice,
    date, datetime, time, timedelta, Decimal, Fraction, UUID,
)  # fmt: skip
"""Types whose `repr` is their value."""
_SPARKS = re.compile(r"pyspark\.sql\.(types|column|classic\.column|connect\.column)")
"""Modules of Spark's types and columns, whose `repr` is what they say."""
_VARIABLE = re.compile(r"\b([a-z])_\d+\b")
"""A variable of a lambda in Spark's expressions: numbered through, process by process."""

Form = Any
"""JSON that says what a value is."""


def fingerprint(value: object) -> str | None:
    """Hexadecimal digits that stand for what a callable computes, or for plain data.

    Returns:
        None if it has no stable form: a callable written in C, an object of a library, or one whose
        own code raises when it is looked at.
    """
    try:
        walk = _Walk(value)
        form = walk.form(value)
        if form[0] == "unknown":
            return None
        said = json.dumps([form, *sorted(json.dumps(part) for part in walk.parts())])
    except Exception:  # noqa: BLE001 - a property of the user's, Spark's text of a column
        return None
    return blake2b(said.encode(), digest_size=16).hexdigest()


class _Walk:
    """Everything of the user's that is reached from one value, each once.

    The form of a function or class is its name, and `parts` has the contents; so circles end.
    """

    def __init__(self, root: object) -> None:
        self._package = _package(root)
        self._found: dict[int, tuple[str, Any]] = {}
        self._names: dict[str, int] = {}
        self._above: list[int] = []

    def parts(self) -> Iterator[Form]:
        """The contents of all that was found, and is found on the way."""
        done = 0
        while done < len(self._found):
            name, value = list(self._found.values())[done]
            done += 1
            contents = self._class if isinstance(value, type) else self._function
            yield [name, contents(value)]

    def form(self, value: Any) -> Form:
        """What a value is, with functions and classes by name."""
        if type(value) in _PLAIN or isinstance(value, PurePath):
            return [type(value).__name__, repr(value)]
        if id(value) in self._above:
            return ["circle"]
        self._above.append(id(value))
        try:
            return self._collection(value) or self._callable(value) or self._object(value)
        finally:
            self._above.pop()

    def _collection(self, value: Any) -> Form | None:
        if isinstance(value, Enum):
            return ["enum", type(value).__qualname__, value.name, self.form(value.value)]
        if isinstance(value, re.Pattern):
            return ["pattern", self.form(value.pattern), value.flags]
        if not isinstance(value, list | tuple | set | frozenset | dict | types.MappingProxyType):
            return None
        if len(value) > LARGE:
            return ["large", len(value)]
        if isinstance(value, list | tuple):
            return [type(value).__name__, [self.form(each) for each in value]]
        if isinstance(value, set | frozenset):
            return ["set", sorted((self.form(each) for each in value), key=json.dumps)]
        pairs = ([self.form(key), self.form(each)] for key, each in value.items())
        return ["dict", sorted(pairs, key=json.dumps)]

    def _callable(self, value: Any) -> Form | None:
        if isinstance(value, functools.partial):
            held = self.form([value.func, value.args, value.keywords])
            return ["unknown"] if self.form(value.func)[0] == "unknown" else ["partial", held]
        if isinstance(value, types.MethodType):
            return ["method", self.form(value.__func__), self.form(value.__self__)]
        if isinstance(value, staticmethod | classmethod):
            return ["method", self.form(value.__func__)]
        if isinstance(value, property):
            return ["property", self.form([value.fget, value.fset])]
        if isinstance(value, types.BuiltinFunctionType):
            return ["unknown", value.__qualname__]
        if isinstance(value, types.FunctionType):
            if self._is_own(value.__code__.co_filename, value.__module__):
                return self._find(value)
            # A UDF is a function of Spark's around the user's.
            wrapped = self._attributes(value) if hasattr(value, "__wrapped__") else []
            return ["library", value.__module__, value.__qualname__, wrapped]
        return None

    def _object(self, value: Any) -> Form:
        kind = value if isinstance(value, type) else type(value)
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__.rpartition(".")[2]]
        if _SPARKS.fullmatch(kind.__module__) and not isinstance(value, type):
            return ["spark", _VARIABLE.sub(r"\1", repr(value))]
        own = self._is_own(_file_of(kind), kind.__module__)
        if isinstance(value, type):
            return self._find(value) if own else ["library", kind.__module__, kind.__qualname__]
        if own or isinstance(value, Aggregate):
            return ["object", self.form(kind), self._attributes(value)]
        return ["unknown", kind.__module__, kind.__qualname__]

    def _find(self, value: Any) -> Form:
        if id(value) not in self._found:
            # Two lambdas, or two functions of one factory, are told apart by their order.
            number = self._names[value.__qualname__] = self._names.get(value.__qualname__, 0) + 1
            self._found[id(value)] = (f"{value.__qualname__}-{number}", value)
        return ["named", self._found[id(value)][0]]

    def _function(self, function: types.FunctionType) -> Form:
        return [
            self._code(function.__code__),
            self.form(function.__defaults__),
            self.form(function.__kwdefaults__),
            [self._cell(cell) for cell in function.__closure__ or ()],
            [[name, self.form(value)] for name, value in self._globals(function)],
            self._attributes(function),
        ]

    def _cell(self, cell: types.CellType) -> Form:
        try:
            return self.form(cell.cell_contents)
        except ValueError:  # not filled yet
            return ["empty"]

    def _code(self, code: types.CodeType) -> Form:
        consts = list(code.co_consts)
        if consts and isinstance(consts[0], str) and _has_docstring(code):
            consts[0] = None
        arguments = code.co_argcount + code.co_kwonlyargcount
        return [
            code.co_code.hex(),
            getattr(code, "co_exceptiontable", b"").hex(),
            [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
            list(code.co_varnames[:arguments]),
            list(code.co_names),
            [self._code(c) if isinstance(c, types.CodeType) else self.form(c) for c in consts],
        ]

    def _globals(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """What the function, and those written within it, name outside of them: by name.

        Of a module of the user's, the members of which the names stand beside it.
        """
        known = function.__globals__
        for code in _nested(function.__code__):
            named = {i.argval for i in dis.get_instructions(code) if i.opname in _BY_NAME}
            for name in sorted(named & known.keys()):
                if not name.startswith("__"):  # `__file__` and `__name__` are of the process
                    yield name, known[name]
                    yield from self._members(name, known[name], {*code.co_names}, [])

    def _members(
        self, prefix: str, module: Any, names: set[str], above: list[Any]
    ) -> Iterator[tuple[str, Any]]:
        if not isinstance(module, types.ModuleType) or module in above:
            return
        if not self._is_own(getattr(module, "__file__", None) or "", module.__name__):
            return
        for name in sorted(names & vars(module).keys()):
            if not name.startswith("__"):
                yield f"{prefix}.{name}", vars(module)[name]
                yield from self._members(
                    f"{prefix}.{name}", vars(module)[name], names, [*above, module]
                )

    def _class(self, kind: type) -> Form:
        own = sorted((name, value) for name, value in vars(kind).items() if _is_member(name, value))
        return [
            [self.form(base) for base in kind.__bases__],
            [[name, self.form(value)] for name, value in own],
        ]

    def _attributes(self, value: Any) -> Form:
        slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
        held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        held |= getattr(value, "__dict__", {})
        return [[name, self.form(held[name])] for name in sorted(held)]

    def _is_own(self, file: str, module: str | None) -> bool:
        """Whether something is the user's: written by them, or of the package of the root."""
        if self._package and (module or "").partition(".")[0] == self._package:
            return True
        return bool(file) and is_the_users(file) and not is_installed(file)


def _package(value: Any) -> str:
    """The package of a function or object that is the user's: it may itself be installed.

    Returns:
        "" for one of Spark's, Python's or ours.
    """
    while isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    file = code.co_filename if code else _file_of(value if isinstance(value, type) else type(value))
    module = str(getattr(value, "__module__", None) or "")
    written = is_the_users(file) or module == "__main__"
    return module.partition(".")[0] if file and written else ""


def _file_of(kind: type) -> str:
    """The file of a class; "" if it is of no file. In a notebook there is only `__main__`."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return file or ("<notebook>" if kind.__module__ == "__main__" else "")


_BY_NAME = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_HAS_DOCSTRING = 0x4000000
"""Flag of code from Python 3.14 on. Before, the first constant of any `def` is for it."""


def _has_docstring(code: types.CodeType) -> bool:
    if sys.version_info >= (3, 14):
        return bool(code.co_flags & _HAS_DOCSTRING)
    return not code.co_name.startswith("<")


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _nested(const)


def _is_member(name: str, value: object) -> bool:
    """Return whether an entry of a class is the user's: Python adds some that differ by process."""
    if name.startswith("__"):
        return isinstance(value, types.FunctionType)
    return not isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType)


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
