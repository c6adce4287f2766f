"""The text by which a table remembers an aggregate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Column

from committers.aggregates import (
    Aggregate,
    CollectSet,
    Count,
    CountDistinct,
    First,
    FirstN,
    Fold,
    LastN,
    Sum,
    by_identity,
    identity,
)
from committers.aggregates import Max as BuiltinMax
from committers.state_table import StateTable
from tests.committers.aggregates.cases import OF_A_COLUMN, make_aggregate

NAMES = st.text("a1_.-,`()*# \n'\"ä", min_size=1, max_size=6) | st.text(min_size=1, max_size=4)


class Max(BuiltinMax):
    """A user's own aggregate with the name of a built-in one."""


class Ratio(Aggregate):
    """A user's own aggregate of two columns."""

    @property
    def columns(self) -> tuple[str, ...]:
        return ("hits", "tries")

    def partial(self) -> Column:
        raise AssertionError

    def combine(self, stored: Column, partial: Column) -> Column:
        raise AssertionError

    def zero(self) -> Column:
        raise AssertionError


def test_plain_names_are_readable() -> None:
    """Class and parameters, as one would write them; quotes only where they are needed."""
    texts = {
        "Count(*)": Count(),
        "Count(`*`)": Count("*"),
        "Sum(delay)": Sum("delay"),
        "Sum(a,b)": Sum("a,b"),
        "CountDistinct(user,12)": CountDistinct("user"),
        "CollectSet(`dep time`,3)": CollectSet("dep time", 3),
        "First(price,time)": First("price", "time"),
        "LastN(2,time,price)": LastN(2, "time", "price"),
        "Fold(`0D`,`acc + row.price`,time,price)": Fold("0D", "acc + row.price", "time", "price"),
    }
    assert list(texts) == [identity(aggregate) for aggregate in texts.values()]
    assert list(texts) == [repr(aggregate) for aggregate in texts.values()]


@given(NAMES, NAMES, st.lists(NAMES, max_size=3), st.integers(4, 21).filter(lambda n: n != 12))
def test_every_built_in_aggregate_is_found_by_its_text(
    name: str, other: str, more: list[str], number: int
) -> None:
    """Whatever the columns are called, the text leads back to the same class and parameters."""
    aggregates = [
        Count(),
        *(make_aggregate(kind, name) for kind in OF_A_COLUMN),
        First(name, other),
        FirstN(number, name, *more),
        LastN(number, name, *more),
        CollectSet(name, number),
        CountDistinct(name, number),
        Fold(name, other, name, *more),
    ]
    for aggregate in aggregates:
        found = by_identity(identity(aggregate))
        assert type(found) is type(aggregate)
        assert found.parameters == aggregate.parameters
    assert len({identity(aggregate) for aggregate in aggregates}) == len(aggregates)


@given(st.text("SumCotn()`,*12a ", max_size=12) | st.text(max_size=8))
def test_a_text_is_read_in_one_way_or_not_at_all(text: str) -> None:
    """A text that leads to an aggregate is that aggregate's own text."""
    found = by_identity(text)
    assert found is None or identity(found) == text


def test_other_texts_name_no_aggregate() -> None:
    """Unknown classes, open parentheses and parameters that do not fit find nothing."""
    texts = ["", "Sum", "Sum()", "Sum(v", "Sum(v) ", "Missing(v)", "CountDistinct(v)"]
    texts += [
        "CountDistinct(v,3)",
        "CountDistinct(v,012)",
        "First(v)",
        "First(v,t,u)",
        "First(v,1)",
    ]
    texts += ["CollectSet(v,`3`)", "FirstN(0,t)", "__import__(os)", "Builtin(v)", "Fold(a,b)"]
    assert [by_identity(text) for text in texts] == [None] * len(texts)


def test_a_users_own_aggregate_is_never_taken_for_a_built_in_one() -> None:
    """One with a built-in name carries its module; columns are named in any case."""
    assert identity(Max("v")) == f"{__name__}.Max(v)"
    assert identity(Ratio()) == "Ratio(hits,tries)"
    assert by_identity(identity(Max("v"))) is None
    assert by_identity(identity(Ratio())) is None


def test_columns_are_all_that_is_read() -> None:
    """Each input column once, so that every one of them can be looked for before anything runs."""
    columns = {
        (): Count(),
        ("v",): Sum("v"),
        ("v", "t"): First("v", "t"),
        ("t", "v", "w"): FirstN(1, "t", "v", "w", "v"),
        ("t", "v"): Fold("0", "acc", "t", "v", "t"),
    }
    assert {aggregate.columns: aggregate for aggregate in columns.values()} == columns
    committer = StateTable("t").bind(["k"], {"x": First("v", "t"), "y": Ratio(), "z": Sum("v")})
    assert committer.required_columns() == ("k", "v", "t", "hits", "tries")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Sum(""), "Sum needs the name of a column, not ''"),
        (lambda: Count(""), "Count needs the name of a column"),
        (lambda: First("v", ""), "First needs the name of a column to order by"),
        (lambda: Fold("", "acc", "t"), "Fold needs an SQL expression to start with"),
        (lambda: Fold("0", "acc", "t", ""), "Fold needs the name of a column"),
        (lambda: CountDistinct("v", 3), "lg_config_k of CountDistinct must be .* 4 to 21, not 3"),
        (lambda: CollectSet("v", 0), "limit of CollectSet must be a whole number from 1 to 10000"),
        (lambda: FirstN(True, "t"), "n of FirstN must be a whole number .* not True"),
    ],
)
def test_wrong_parameters_are_refused_at_once(make: object, said: str) -> None:
    """A parameter without meaning is refused where it is written, by class and name."""
    assert callable(make)
    with pytest.raises(ValueError, match=said):
        make()
