"""The columns and types of every stream and table of a program, as SQL has them. No Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.committers.aggregates.cases import OF_A_COLUMN
from tests.differential.declaration import Program, Step
from tests.differential.time_sessions import SESSION

__all__ = ["Columns", "aggregate_type", "columns_of", "expression_type", "streams_of"]

Columns = dict[str, str]
"""Name -> type."""


def columns_of(program: Program) -> dict[str, Columns]:
    """The columns of every source and step; of a table, those that its readers see."""
    found = {source.name: dict(source.columns) for source in program.sources}
    for step in program.steps:
        found[step.id] = _columns(program, step, found)
    return found


def streams_of(program: Program, name: str) -> set[str]:
    """The sources that a stream or a table follows from."""
    if any(source.name == name for source in program.sources):
        return {name}
    step = program.step(name)
    of = step.of[:1] if step.op == "query" else step.of  # a state that is asked feeds nothing
    return set().union(*(streams_of(program, one) for one in of))


def _columns(program: Program, step: Step, found: Mapping[str, Columns]) -> Columns:
    first, args = found[step.of[0]], step.args
    match step.op:
        case "select":
            return {new: first[old] for old, new in args["columns"]}
        case "derive":
            return {**first, args["name"]: expression_type(args["expression"], first)}
        case "cast":
            return {**first, args["name"]: args["kind"]}
        case "window" | "session_windows":
            return {**first, args.get("name", SESSION): "struct<start:timestamp,end:timestamp>"}
        case "aggregate" | "state":
            keys = {key: first[key] for key in args["keys"]}
            return keys | {
                name: aggregate_type(spec, first) for name, spec in args["aggregates"].items()
            }
        case "join" | "join_in_time":
            if args["how"] in ("left_semi", "left_anti"):
                return first
            return first | found[step.of[1]]
        case "scatter":
            return first | {"chance": "double"}
        case "half":
            return {name: kind for name, kind in first.items() if name != "chance"}
        case "new_values":
            keys = program.step(step.of[0]).args["keys"]
            return first | {f"prev_{name}": first[name] for name in first if name not in keys}
        case "query":
            return first | found[step.of[1]]
        case _:
            return first


def expression_type(expression: Sequence[Any], columns: Columns) -> str:
    """The type of a derived column."""
    match expression:
        case ["literal", kind, _]:
            return str(kind)
        case ["copy", name]:
            return columns[name]
        case ["text", _]:
            return "string"
        case ["length", _]:
            return "int"
        case ["is_null", _]:
            return "boolean"
        case ["pair", left, right]:
            return f"struct<x:{columns[left]},y:{columns[right]}>"
        case ["list", name]:
            return f"array<{columns[name]}>"
        case _:  # "mod", "txid"
            return "bigint"


def aggregate_type(spec: Sequence[Any], columns: Columns) -> str:
    """The type of what readers see of an aggregate."""
    match spec:
        case ["Count"]:
            return "bigint"
        case ["FirstN" | "LastN", _, order, value]:
            names = dict.fromkeys((order, value))
            return f"array<struct<{','.join(f'{n}:{columns[n]}' for n in names)}>>"
        case ["First" | "Last", value, _]:
            return columns[value]
        case ["Fold", *_]:
            return "string"
        case [name, column, *_]:
            return OF_A_COLUMN[name].result(columns[column])
    raise ValueError(f"no aggregate: {spec}")
