"""What a query for readers needs of an engine's SQL: DuckDB's, Spark's and Trino's.

Where the engines agree, functions of `Dialect` say it once; where they differ, templates do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from committers.reading.types import (
    DUCKDB_TYPES,
    TypeWords,
    element_of,
    mean_type,
    precision_of,
    type_text,
)
from txn.delta.commits import TXID
from txn.spark.names import quoted as in_backticks

__all__ = ["DIALECTS", "DISTINCT", "DUCKDB", "Dialect", "DialectName"]

DISTINCT = "txn_count_distinct"
"""DuckDB's function of `committers.reading.sketches`: sketches -> the estimate for all."""
DialectName = Literal["duckdb", "spark", "trino"]
_ONE, _OTHER = "txn one", "txn other"
"""Names of the query alone: no column of a Delta table has a space in its name."""


@dataclass(frozen=True)
class Dialect:
    """An engine's SQL. Methods take and return SQL; a kind is a type as in the JSON of a schema.

    Arguments are templates, with {x} for a column or another expression, {type} for a type, {one}
    and {other} for variables. Aggregates pass over NULL, and are NULL without other values.

    Args:
        words: its types.
        instant: {x} microseconds since 1970.
        fields: one field {name} of a struct literal.
        struct: a struct of these.
        first: the first {most} of a sorted array, with one of these: {key} is what {one} is ordered
            by, {way} how; {ascending}; {low} and {high} are compared.
        reduced: an array in one value, by {both} of two.
        version: {x}, a table, as of version {n}; empty: it reads files.
        default: a table without another name: {path}, or {last}, the last part of it.
        total: the sum of a column; an error if it does not fit.
        mean: {total} / {count}.
        whole: type of whole numbers with 38 digits; empty: `mean` is exact for decimals, too.
        divided: the whole part of {x} / {y}.
        each: an array with {value} for each element; empty: the engine orders nested values as
            Spark does, which is NULL first.
        order: what orders the elements of an array that is aggregated.
        distinct: the estimate of a sketch; empty: the engine has no such function.
        distinct_of_all: the estimate of a column of sketches.
        nan_is_last: whether NaN is the greatest number for each function.
        instants_are_exact: False: it rounds them when it reads them.
        renamed: aggregate function -> its name here.
    """

    words: TypeWords
    instant: str
    fields: str
    struct: str
    first: str
    reduced: str
    version: str = ""
    default: str = ""
    total: str = "CAST(SUM({x}) AS {type})"
    mean: str = "CAST({total} AS DOUBLE) / {count}"
    whole: str = ""
    divided: str = ""
    each: str = ""
    order: str = ""
    distinct: str = ""
    distinct_of_all: str = ""
    nan_is_last: bool = True
    instants_are_exact: bool = True
    renamed: tuple[tuple[str, str], ...] = ()

    def quoted(self, name: str) -> str:
        """A name in quotes."""
        return self.words.quote(name)

    def typed(self, kind: Any, column: str) -> str:
        """A type; TableRefusedError, naming the column, if the engine does not have it."""
        return type_text(kind, column, self.words)

    def source(self, url: str, version: int, name: str | None) -> str:
        """What stands after FROM for a version of a table; `name`: its name in a catalog."""
        last = self.quoted(url.rstrip("/").rpartition("/")[2])
        table = self.default.format(path=self.quoted(url), last=last)
        if name is not None:
            table = ".".join(map(self.quoted, name.split(".")))
        return self.version.format(x=table, n=version)

    def field(self, x: str, name: str) -> str:
        """A field of a struct."""
        return f"{x}.{self.quoted(name)}"

    def over(self, function: str, x: str) -> str:
        """An aggregate function, such as BIT_AND, over a column."""
        return f"{dict(self.renamed).get(function, function)}({x})"

    def row(self, values: Mapping[str, str], kind: Any) -> str:
        """A struct of this kind."""
        fields = ", ".join(self.fields.format(name=n, x=x) for n, x in values.items())
        return self.struct.format(x=fields, type=self.typed(kind, ""))

    def sum(self, x: str, kind: Any) -> str:
        """The sum of a column. Of whole numbers only the total has to be in range."""
        wide = f"CAST({x} AS DECIMAL(38,0))" if kind == "long" else x
        return self.total.format(x=wide, type=self.typed(kind, x))

    def quotient(self, total: str, count: str, kind: Any) -> str:
        """`total / count` as Spark divides; `kind` is that of the total, the count is not 0."""
        decimal, mean = precision_of(kind), precision_of(mean_type(kind))
        if decimal is None or mean is None or not self.whole:
            return self.mean.format(total=total, count=count)
        more = f"CAST('1{'0' * (mean[1] - decimal[1])}' AS {self.whole})"
        # A decimal of 38 digits has no room for a factor, its digits alone have.
        digits = f"ABS(CAST(REPLACE(CAST({total} AS VARCHAR), '.', '') AS {self.whole}))"
        many = f"CAST({count} AS {self.whole})"
        twice = f"(({digits} % {many}) * {more} * 2 + {many})"  # rounds half up, as Spark
        rest = self.divided.format(x=twice, y=f"({many} * 2)")
        value = f"{self.divided.format(x=digits, y=many)} * {more} + {rest}"
        unit = f"CAST('{Decimal(1).scaleb(-mean[1]):f}' AS DECIMAL(38,{mean[1]}))"
        value = f"CAST(CAST({value} AS DECIMAL(38,0)) * {unit} AS DECIMAL({mean[0]},{mean[1]}))"
        return f"CASE WHEN {total} < 0 THEN -{value} ELSE {value} END"

    def extreme(self, x: str, kind: Any, *, descending: bool) -> str:
        """The smallest or greatest value of a column, in Spark's order."""
        function, key = "MAX" if descending else "MIN", self._key(x, kind)
        if key == x:
            return f"{function}({x})"
        return f"{function}_BY({x}, {key}) FILTER (WHERE {x} IS NOT NULL)"

    def elements(self, x: str, *, distinct: bool) -> str:
        """All elements of a column of arrays, as one array; `distinct`: each once."""
        found = f"FLATTEN(ARRAY_AGG({x}) FILTER (WHERE {x} IS NOT NULL))"
        found = f"ARRAY_DISTINCT({found})" if distinct else found
        return f"CASE WHEN COUNT({x}) > 0 THEN {found} END"

    def first_of(self, x: str, kind: Any, most: int, *, descending: bool) -> str:
        """The first elements, of this kind, of an array in Spark's order; NULL for NULL."""
        one, other = self.quoted(_ONE), self.quoted(_OTHER)
        key, low = self._key(one, kind), self._key(other, kind)
        low, high = (low, key) if descending else (key, low)
        way = "DESC NULLS LAST" if descending else "ASC NULLS FIRST"
        names = {"one": one, "other": other, "ascending": str(not descending).lower()}
        return self.first.format(x=x, most=most, key=key, way=way, low=low, high=high, **names)

    def moments(self, x: str, kind: Any, both: Callable[[str, str], str]) -> str:
        """Merge those structs of a column whose `count` is not 0; `both`: two of them -> one."""
        one, other = self.quoted(_ONE), self.quoted(_OTHER)
        some = f"ARRAY_AGG({x}{self.order}) FILTER (WHERE {self.field(x, 'count')} > 0)"
        named = {"one": one, "other": other, "both": both(one, other)}
        return self.reduced.format(x=some, type=self.typed(kind, x), **named)

    def _key(self, x: str, kind: Any, depth: int = 0) -> str:
        """What is ordered as Spark orders `x`, at any depth; NULL for NULL."""
        if not self.each:
            return x
        if isinstance(kind, str):
            if self.nan_is_last or kind not in ("float", "double"):
                return x
            key = f"ROW(IS_NAN({x}), CASE WHEN IS_NAN({x}) THEN 0 ELSE {x} END)"
        elif kind["type"] == "array":
            one = self.quoted(f"txn {depth}")
            value = self._null_first(one, element_of(kind), depth + 1)
            return self.each.format(x=x, one=one, value=value)
        else:
            fields = ((self.field(x, f["name"]), f["type"]) for f in kind["fields"])
            key = f"ROW({', '.join(self._null_first(*field, depth) for field in fields)})"
        return f"CASE WHEN {x} IS NOT NULL THEN {key} END"

    def _null_first(self, x: str, kind: Any, depth: int) -> str:
        """An array of one value, or of none, which is less: engines have NULL last or refuse it."""
        return f"CASE WHEN {x} IS NULL THEN ARRAY[] ELSE ARRAY[{self._key(x, kind, depth)}] END"


_BY_TXID = f" ORDER BY {TXID} NULLS FIRST"
_OVERFLOW = "RAISE_ERROR('ARITHMETIC_OVERFLOW: a total or a mean leaves the range of its type.')"
_START = (
    "CAST(NULL AS {type}), ({one}, {other}) -> CASE WHEN {one} IS NULL THEN {other} ELSE {both}"
)
DUCKDB = Dialect(
    DUCKDB_TYPES,
    instant="make_timestamptz({x})",
    fields="'{name}': {x}",
    struct="{{{x}}}",
    whole="HUGEINT",
    divided="({x} // {y})",
    each="LIST_TRANSFORM({x}, lambda {one}: {value})",
    # The list of no elements is no row of UNNEST, and NULL stays NULL.
    first="CASE WHEN {x} IS NOT NULL THEN COALESCE((SELECT LIST({one} ORDER BY {key} {way}) FROM "
    "(SELECT UNNEST({x}) AS {one})), [])[1:{most}] END",
    order=_BY_TXID,
    reduced="LIST_REDUCE({x}, lambda {one}, {other}: {both})",
    distinct=f"CASE WHEN {{x}} IS NOT NULL THEN {DISTINCT}([{{x}}]) END",
    distinct_of_all=f"{DISTINCT}(LIST({{x}}) FILTER (WHERE {{x}} IS NOT NULL))",
)
_SPARK = Dialect(
    TypeWords(
        "Spark",
        {
            "string": "STRING",
            "binary": "BINARY",
            "timestamp": "TIMESTAMP",
            "timestamp_ntz": "TIMESTAMP_NTZ",
        },
        *("ARRAY<{}>", "MAP<{}, {}>", "STRUCT<{}>"),
        quote=in_backticks,
    ),
    version="{x} VERSION AS OF {n}",
    default="delta.{path}",
    instant="TIMESTAMP_MICROS({x})",
    fields="'{name}', {x}",
    struct="CAST(NAMED_STRUCT({x}) AS {type})",
    total="COALESCE(TRY_CAST(TRY_SUM({x}) AS {type}), CASE WHEN COUNT({x}) > 0 THEN "
    f"{_OVERFLOW} END)",
    mean=f"COALESCE(TRY_DIVIDE({{total}}, {{count}}), {_OVERFLOW})",
    first="SLICE(SORT_ARRAY({x}, {ascending}), 1, {most})",
    reduced=f"AGGREGATE({{x}}, {_START} END)",
    distinct="HLL_SKETCH_ESTIMATE({x})",
    # The union of one sketch would estimate a little differently from that sketch.
    distinct_of_all="HLL_SKETCH_ESTIMATE(CASE WHEN COUNT({x}) = 1 THEN ANY_VALUE({x}, true) "
    "WHEN COUNT({x}) > 1 THEN HLL_UNION_AGG({x}) END)",
)
# Sources: Trino's documentation of its connector for Delta Lake ("Type mapping") and of functions.
_TRINO = Dialect(
    TypeWords(
        "Trino",
        {
            "float": "REAL",
            "binary": "VARBINARY",
            "timestamp": "TIMESTAMP(3) WITH TIME ZONE",
            "timestamp_ntz": "TIMESTAMP(6)",
        },
        array="ARRAY({})",
        struct="ROW({})",
    ),
    version="{x} FOR VERSION AS OF {n}",
    default='"delta"."default".{last}',
    instant="FROM_UNIXTIME_NANOS({x}000)",
    fields="{x}",
    struct="CAST(ROW({x}) AS {type})",
    whole="DECIMAL(38,0)",
    divided="(({x} - {x} % {y}) / {y})",
    each="TRANSFORM({x}, {one} -> {value})",
    first="SLICE(ARRAY_SORT({x}, ({one}, {other}) -> CASE WHEN {low} < {high} THEN -1 "
    "WHEN {low} > {high} THEN 1 ELSE 0 END), 1, {most})",
    order=_BY_TXID,
    reduced=f"REDUCE({{x}}, {_START} END, {{one}} -> {{one}})",
    nan_is_last=False,
    instants_are_exact=False,
    renamed=tuple((f"BIT_{name}", f"BITWISE_{name}_AGG") for name in ("AND", "OR", "XOR")),
)
DIALECTS: Mapping[DialectName, Dialect] = {"duckdb": DUCKDB, "spark": _SPARK, "trino": _TRINO}
"""Name on the command line -> engine."""
