"""A fingerprint of what a user's function computes, the same in every process: changed or not?

Two fingerprints differ if the compiled code differs, or the constants, defaults and closure values
that are plain data, or those of any function of the user's own that is reached from there, by a
global name, a closure, a decorator, a partial, a method or an attribute. Comments, docstrings, line
numbers, names of local variables and the name of the file do not count. A global counts as soon as
the function uses its name, if only as that of an attribute.

What has no stable form (a client, a lock, a session) counts by its type alone, and a collection of
more than `LARGE` by its length; a function written in C has no fingerprint at all. Fingerprints of
two releases of Python tell nothing: `PYTHON`.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from collections import Counter
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

PYTHON = f"{sys.implementation.cache_tag} {sys.version.split()[0]} form-2" + (
    f" -{'O' * sys.flags.optimize}" if sys.flags.optimize else ""
)
"""The Python whose code is read, and the form it is read into: only fingerprints of an equal one
can be compared."""

_PLAIN = (
    str, bool, int, float, complex, bytes, bytearray, type(None), type(...), range, slice,
    date, datetime, time, timedelta, Decimal, Fraction, UUID,
)  # fmt: skip
"""Types whose `repr` is their value."""
_COLLECTIONS = (list, tuple, set, frozenset, dict, types.MappingProxyType)
_MADE_OF: dict[type, tuple[str, ...]] = {
    Enum: ("name", "value"),
    re.Pattern: ("pattern", "flags"),
    functools.partial: ("func", "args", "keywords"),
    types.MethodType: ("__func__", "__self__"),
    types.CellType: ("cell_contents",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset"),
}
"""The attributes in which such a value has all that it is."""
_SPARKS = re.compile(r"pyspark\.sql\.(types|column|classic\.column|connect\.column)")
"""Modules of Spark's types and columns, whose `repr` is what they say."""
_VARIABLE = re.compile(r"\b([a-z])_\d+\b")
"""A variable of a lambda in Spark's expressions: numbered through, process by process."""
_UNKNOWN = "unknown "
_HAS_DOCSTRING = 0x4000000
"""Flag of code from Python 3.14 on. Before, the first constant of any `def` is for it."""


def fingerprint(value: object) -> str | None:
    """Hexadecimal digits that stand for what a callable computes, or for plain data.

    Returns:
        None if it has no stable form: a callable written in C, an object of a library, or one whose
        own code raises when it is looked at.
    """
    root = value
    while isinstance(root, functools.partial):
        root = root.func
    try:
        walk = _Walk(root)
        if walk.form(root).startswith(_UNKNOWN):
            return None
        text = "\n".join([walk.form(value), *sorted(walk.contents())])
    except Exception:  # noqa: BLE001 - a property of the user's, Spark's text of a column
        return None
    return blake2b(text.encode(), digest_size=16).hexdigest()


class _Walk:
    """The texts of one value, and of all functions and classes of the user's that it reaches.

    The text of a function or class is its name, and `contents` has the rest; so circles end.
    """

    def __init__(self, root: Any) -> None:
        module, file = _origin(getattr(root, "__func__", root))
        written = file and (is_the_users(file) or module == "__main__")
        self._package = module.partition(".")[0] if written else ""
        self._found: list[tuple[str, Any]] = []
        self._names: dict[int, str] = {}
        self._numbers: Counter[str] = Counter()
        self._above: list[int] = []

    def contents(self) -> Iterator[str]:
        """Of every function and class that was found, and of those found on the way."""
        for name, value in self._found:  # it grows meanwhile
            parts = _of_class(value) if isinstance(value, type) else self._of_function(value)
            yield self._all(name, *parts)

    def form(self, value: Any) -> str:
        """The text of a value; of a function or class of the user's, its name."""
        if type(value) in _PLAIN or isinstance(value, PurePath):
            return repr(value)
        if id(value) in self._above:
            return "circle"
        self._above.append(id(value))
        try:
            return self._definition(value) or self._object(value)
        finally:
            self._above.pop()

    def _all(self, name: str, *values: Any) -> str:
        return f"{name}({', '.join(map(self.form, values))})"

    def _definition(self, value: Any) -> str | None:
        if isinstance(value, types.CodeType):
            return self._all("code", *_of_code(value))
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__.rpartition('.')[2]}"
        if isinstance(value, types.BuiltinFunctionType):
            return f"{_UNKNOWN}{value.__qualname__}"
        if not isinstance(value, types.FunctionType | type):
            return None
        if not self._is_own(value):
            # A UDF is a function of Spark's around the user's.
            held = vars(value) if "__wrapped__" in vars(value) else None
            return self._all(f"{value.__module__}.{value.__qualname__}", held)
        if id(value) not in self._names:
            # Two lambdas, or two functions of one factory, are told apart by their order.
            self._numbers[value.__qualname__] += 1
            name = f"{value.__qualname__}-{self._numbers[value.__qualname__]}"
            self._names[id(value)] = name
            self._found.append((name, value))
        return self._names[id(value)]

    def _object(self, value: Any) -> str:
        kind = type(value)
        for made, names in _MADE_OF.items():
            if isinstance(value, made):
                return self._all(kind.__qualname__, *(getattr(value, name) for name in names))
        if isinstance(value, _COLLECTIONS):
            if len(value) > LARGE:
                return f"large {len(value)}"
            forms = map(self.form, value.items() if hasattr(value, "items") else value)
            ordered = forms if isinstance(value, list | tuple) else sorted(forms)
            return f"{kind.__qualname__}({', '.join(ordered)})"
        if _SPARKS.fullmatch(kind.__module__):
            return "spark " + _VARIABLE.sub(r"\1", repr(value))
        if self._is_own(kind) or isinstance(value, Aggregate):
            return self._all("object", kind, _attributes(value))
        return f"{_UNKNOWN}{kind.__module__}.{kind.__qualname__}"

    def _of_function(self, function: types.FunctionType) -> list[Any]:
        code = function.__code__
        names = {name for one in _nested(code) for name in one.co_names}
        filled = [cell for cell in function.__closure__ or () if cell != types.CellType()]
        return [
            *(code, function.__defaults__, function.__kwdefaults__, filled),
            dict(self._globals(function.__globals__, names)),
            vars(function),
        ]

    def _globals(
        self, known: dict[str, Any], names: set[str], *above: Any
    ) -> Iterator[tuple[str, Any]]:
        """What bears one of the names; of a module of the user's, its members that do."""
        for name in names & known.keys():
            value = known[name]
            if name.startswith("__"):  # `__file__` and `__name__` are of the process
                continue
            yield ".".join([*(module.__name__ for module in above), name]), value
            if isinstance(value, types.ModuleType) and value not in above and self._is_own(value):
                yield from self._globals(vars(value), names, *above, value)

    def _is_own(self, value: Any) -> bool:
        """Whether something is the user's: written by them, or of the package of the root."""
        module, file = _origin(value)
        if self._package and module.partition(".")[0] == self._package:
            return True
        return bool(file) and is_the_users(file) and not is_installed(file)


def _of_code(code: types.CodeType) -> list[Any]:
    """All of it but the names of files and local variables, lines, and the docstring."""
    consts = list(code.co_consts)
    documented = not code.co_name.startswith("<")
    if sys.version_info >= (3, 14):
        documented = bool(code.co_flags & _HAS_DOCSTRING)
    if documented and consts and isinstance(consts[0], str):
        consts[0] = None
    return [
        *(code.co_code, getattr(code, "co_exceptiontable", b"")),  # the latter from 3.11 on
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        code.co_varnames[: code.co_argcount + code.co_kwonlyargcount],
        code.co_names,
        consts,
    ]


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code, and those of the functions that are written within it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _nested(const)


def _of_class(kind: type) -> list[Any]:
    """The bases of a class, and what it defines; Python adds more, which differs by process."""
    added = (types.GetSetDescriptorType, types.MemberDescriptorType)
    own = {
        name: value
        for name, value in vars(kind).items()
        if isinstance(value, types.FunctionType)
        or not (name.startswith("__") or isinstance(value, added))
    }
    return [kind.__bases__, own]


def _attributes(value: Any) -> dict[str, Any]:
    slots = (vars(kind).get("__slots__", ()) for kind in type(value).__mro__)
    names = [n for some in slots for n in ([some] if isinstance(some, str) else some)]
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})}


def _origin(value: Any) -> tuple[str, str]:
    """The module and the file of a function, a class, a module, or the class of anything else.

    The file is "" if there is none. In a notebook there is only `__main__`.
    """
    if isinstance(value, types.FunctionType):
        return value.__module__ or "", value.__code__.co_filename
    if isinstance(value, types.ModuleType):
        return value.__name__, getattr(value, "__file__", None) or ""
    name = (value if isinstance(value, type) else type(value)).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    return name, file or ("<notebook>" if name == "__main__" else "")
