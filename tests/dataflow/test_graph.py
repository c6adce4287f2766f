"""The dataflow of one attempt: what is computed, what is shared, what is refused."""

from __future__ import annotations

import traceback

import pytest

from committers.aggregates import Count, Sum
from spouts.memory import MemoryTransactionalSpout
from txn.dataflow.evaluation import Evaluation, Unknown, consumers
from txn.dataflow.graph import Aggregation, Join, Merge, Sink, Source, Transform, require_columns
from txn.errors import FailedException, TopologyError, TransformError
from txn.topology import Topology

SCHEMA = "k string, v int"


@pytest.fixture
def s() -> Source:
    """A stream "s"."""
    return Source("s", MemoryTransactionalSpout([], SCHEMA))


@pytest.fixture
def t() -> Source:
    """A stream "t"."""
    return Source("t", MemoryTransactionalSpout([], SCHEMA))


@pytest.fixture
def rows(spark):
    """Three rows of two keys."""
    return spark.createDataFrame([("a", 1), ("a", 2), ("b", 3)], SCHEMA)


def evaluation(inputs, counts=None, share=lambda frame, _: frame) -> Evaluation:
    """An evaluation over the given DataFrames."""
    return Evaluation(inputs, counts or {}, share)


def sink(node) -> Sink:
    """A sink of which only the parent matters."""
    return Sink(node, None)  # type: ignore[arg-type]


def collected(frame) -> list[tuple]:
    """The rows of a DataFrame as sorted tuples."""
    return sorted(tuple(row) for row in frame.collect())


def test_a_node_descends_from_each_of_its_sources_once(s, t):
    """A diamond names its source once, in the order of the DAG."""
    left, right = Transform(s, lambda df: df), Transform(s, lambda df: df)
    node = Merge((left, right, t))
    assert {"s", "t"} == {source.name for source in node.sources()}
    assert len(list(node.sources())) == 2


def test_the_label_of_a_node_names_its_streams(s, t):
    """Messages name the streams that the user declared."""
    assert Join(s, t, ("k",), "inner").label() == "s+t"


def test_two_equal_looking_streams_are_two_streams(s):
    """Nodes are compared by identity."""
    assert s != Source(s.name, s.spout)


def test_consumers_counts_nodes_and_sinks(s):
    """A node that two tables read, and a node that a table and a node read, have two consumers."""
    both = Transform(s, lambda df: df)
    last = Transform(both, lambda df: df)
    assert {s: 1, both: 2, last: 2} == consumers([sink(both), sink(last), sink(last)])


def test_a_node_is_computed_once_per_attempt_and_shared(s, rows):
    """The function of a transform with two consumers runs once; its result is handed to `share`."""
    calls, shared = [], []
    node = Transform(s, lambda df: calls.append(1) or df)
    run = evaluation({"s": rows}, {node: 2}, lambda frame, _: shared.append(frame) or frame)
    assert run.rows(node) is run.rows(node)
    assert (len(calls), len(shared)) == (1, 1)


def test_a_node_with_one_consumer_is_not_shared(s, rows):
    """A result that is used once costs no cache."""
    shared = []
    node = Transform(s, lambda df: df)
    evaluation({"s": rows}, {node: 1}, lambda frame, _: shared.append(frame) or frame).rows(node)
    assert shared == []


def test_two_attempts_share_nothing(s, rows):
    """Each attempt has an evaluation of its own, so a failed attempt leaks no rows.

    Trident row 3.
    """
    calls = []
    node = Transform(s, lambda df: calls.append(1) or df)
    evaluation({"s": rows}).rows(node)
    evaluation({"s": rows}).rows(node)
    assert len(calls) == 2


def test_an_aggregation_has_one_row_per_group(s, rows):
    """Keys first, then the named aggregates.

    Trident rows 31 and 35.
    """
    node = Aggregation(s, ("k",), {"n": Count(), "total": Sum("v")})
    frame = evaluation({"s": rows}).rows(node).frame
    assert frame.columns == ["k", "n", "total"]
    assert collected(frame) == [("a", 2, 3), ("b", 1, 3)]


def test_an_aggregation_without_keys_has_one_row_even_for_no_rows(s, rows):
    """As in Trident, a global aggregate of an empty batch is a row.

    Trident row 34.
    """
    node = Aggregation(s, (), {"n": Count()})
    assert collected(evaluation({"s": rows.limit(0)}).rows(node).frame) == [(0,)]


@pytest.mark.parametrize(
    ("keys", "aggregates"), [(("x",), {"n": Count()}), (("k",), {"n": Sum("x")})]
)
def test_an_aggregation_over_a_missing_column_names_it_and_its_stream(s, rows, keys, aggregates):
    """Keys and inputs of aggregates are looked for before Spark does."""
    with pytest.raises(TopologyError, match=r"Stream 's' has no column 'x'. It has: k, v"):
        evaluation({"s": rows}).rows(Aggregation(s, keys, aggregates))


def test_merge_matches_columns_by_name(s, t, rows, spark):
    """The order of the columns does not matter, and duplicates stay."""
    other = spark.createDataFrame([(1, "a")], "v int, k string")
    frame = evaluation({"s": rows, "t": other}).rows(Merge((s, t))).frame
    assert collected(frame) == [("a", 1), ("a", 1), ("a", 2), ("b", 3)]


def test_merge_refuses_other_columns_and_names_them(s, t, rows):
    """Streams with other columns cannot be one stream."""
    other = rows.withColumnRenamed("v", "w")
    with pytest.raises(TopologyError, match=r"Streams 's\+t' cannot be merged.*'v'.*'w'"):
        evaluation({"s": rows, "t": other}).rows(Merge((s, t)))


def test_merge_goes_on_without_a_stream_of_unknown_columns(s, t, rows):
    """A stream that was idle from the beginning adds no rows."""
    assert len(collected(evaluation({"s": rows}).rows(Merge((s, t))).frame)) == 3


THREE = [("a", 1), ("a", 2), ("b", 3)]


@pytest.mark.parametrize(
    ("how", "unknown", "expected", "lacks"),
    [
        ("inner", "t", [], True),
        ("cross", "t", [], True),
        ("left", "t", THREE, True),
        ("right", "t", [], True),
        ("full", "t", THREE, True),
        ("left_semi", "t", [], False),
        ("left_anti", "t", THREE, False),
        ("inner", "s", [], True),
        ("cross", "s", [], True),
        ("left", "s", [], True),
        ("right", "s", THREE, True),
        ("full", "s", THREE, True),
        ("left_semi", "s", [], True),
        ("left_anti", "s", [], True),
    ],
)
def test_what_a_join_is_while_one_side_is_unknown(s, t, rows, how, unknown, expected, lacks):
    """The table of docs/streams.md: the rows that are owed, and whether columns are missing."""
    known = "s" if unknown == "t" else "t"
    found = evaluation({known: rows}).rows(Join(s, t, ("k",), how))
    assert collected(found.frame) == expected
    assert found.lacks == ({f"stream '{unknown}'"} if lacks else set())
    assert found.streams == {known}, "The frame descends from the side that was read."


def test_a_join_type_that_spark_does_not_know_is_refused_when_it_is_built():
    """A misspelt join would else be found with the first batch."""
    topology = Topology("joins")
    stream = topology.stream("s", MemoryTransactionalSpout([], SCHEMA))
    with pytest.raises(TopologyError, match="how='lefty'"):
        stream.join(stream, on="k", how="lefty")
    assert stream.join(stream, on="k", how="LEFT_ANTI") is not None


def test_what_is_left_out_of_a_merge_is_idle_for_certain(s, t, rows):
    """A side that has something to read, and cannot be computed, makes the merge unknown."""
    u = Source("u", s.spout)
    count = Aggregation(Join(s, t, ("k",), "left"), ("k",), {"n": Sum("w")})
    merged = evaluation({"s": rows, "u": rows}).rows(Merge((count, u)))
    assert isinstance(merged, Unknown)
    assert merged.waits_for == {"stream 't'"}
    everything = Aggregation(t, (), {"n": Count()})
    counted = evaluation({"s": rows}).rows(Merge((Aggregation(s, (), {"n": Count()}), everything)))
    assert isinstance(counted, Unknown), "A global count of no rows is a row."


def test_a_merge_takes_missing_columns_from_the_other_side(s, t, rows, spark):
    """What a left join lacks, a whole stream of the same columns tells."""
    whole = spark.createDataFrame([("z", 9, 1.5)], "k string, v int, w double")
    u = Source("u", s.spout)
    node = Merge((Join(s, t, ("k",), "left"), u))
    found = evaluation({"s": rows, "u": whole}).rows(node)
    assert collected(found.frame.where("w IS NOT NULL")) == [("z", 9, 1.5)]
    assert (found.frame.count(), found.lacks, found.streams) == (4, set(), {"s", "u"})


def test_a_transform_of_rows_that_lack_columns_is_not_guessed_at(s, t, rows):
    """A function may look at every column, and is not called before all of them are there."""
    calls = []
    node = Transform(Join(s, t, ("k",), "left"), lambda df: calls.append(1) or df)
    assert isinstance(evaluation({"s": rows}).rows(node), Unknown)
    assert calls == []


def test_columns_of_earlier_runs_that_do_not_fit_are_unknown_and_not_wrong(s, t, rows):
    """The program may have changed since; what the stream has now decides."""
    node = Join(s, Transform(t, lambda df: df.selectExpr("k", "new")), ("k",), "left")
    run = Evaluation({"s": rows}, {}, lambda f: f, idle=lambda _: rows.limit(0), assumed={"t"})
    assert run.rows(node) == Unknown(frozenset({"stream 't'"}), empty=False, streams={"s"})
    assert "new" in str(run.doubts["stream 't'"]), "Whoever waits can tell what did not fit."
    sure = Evaluation({"s": rows}, {}, lambda f: f, idle=lambda _: rows.limit(0))
    with pytest.raises(TopologyError, match="new"):
        sure.rows(node)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [("a", 1, 10), ("a", 2, 10)]),
        ("left", [("a", 1, 10), ("a", 2, 10), ("b", 3, None)]),
    ],
)
def test_a_join_is_within_the_batch(s, t, rows, spark, how, expected):
    """The join columns appear once."""
    other = spark.createDataFrame([("a", 10)], "k string, w int")
    frame = evaluation({"s": rows, "t": other}).rows(Join(s, t, ("k",), how)).frame
    assert frame.columns == ["k", "v", "w"]
    assert expected == collected(frame)


def test_a_join_names_the_side_that_lacks_the_column(s, t, rows):
    """The stream in the message is the one to be corrected."""
    other = rows.withColumnRenamed("k", "key")
    with pytest.raises(TopologyError, match=r"Stream 't' has no column 'k'"):
        evaluation({"s": rows, "t": other}).rows(Join(s, t, ("k",), "inner"))


def test_a_transform_must_return_a_dataframe(s, rows):
    """Forgetting `return` is named with function and line."""

    def forgetful(frame):
        frame.where("v > 1")

    with pytest.raises(TopologyError, match=r"stream 's' returned NoneType.*forgetful.*test_graph"):
        evaluation({"s": rows}).rows(Transform(s, forgetful))


def test_what_spark_refuses_is_told_with_stream_and_function(s, rows):
    """An unknown column in a transform is the program's mistake: no replay, no stack of Java."""

    def misspelled(frame):
        return frame.where("vv > 1")

    with pytest.raises(TopologyError, match=r"Stream 's' cannot be computed in .*misspelled.*vv"):
        evaluation({"s": rows}).rows(Transform(s, misspelled))


def test_a_failed_exception_of_a_transform_stays_one(s, rows):
    """User code may fail the batch."""

    def refusing(frame):
        raise FailedException("not yet")

    with pytest.raises(FailedException, match="not yet"):
        evaluation({"s": rows}).rows(Transform(s, refusing))


def test_an_exception_of_user_code_is_named_with_its_stream_and_line(s, rows):
    """It becomes the cause of an error that says where the user wrote it."""
    with pytest.raises(TransformError, match="stream 's' raised ZeroDivisionError") as caught:
        evaluation({"s": rows}).rows(Transform(s, lambda df: 1 // 0))
    line = traceback.extract_tb(caught.value.__cause__.__traceback__)[-1].lineno
    assert f"in <lambda> ({__file__}:{line}). Correct it" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_streams_read_are_those_that_the_rows_came_from(s, t, rows):
    """Rows name the streams whose DataFrames they were built from, idle ones not among them."""
    run = evaluation({"s": rows, "t": rows})
    node, other = Transform(s, lambda df: df), Transform(t, lambda df: df)
    assert run.rows(node).streams == {"s"}
    assert run.rows(Merge((node, other))).streams == {"s", "t"}


def test_required_columns_that_are_there_are_silent(rows):
    """Nothing is raised for columns that the stream has."""
    assert require_columns(rows, ["k", "v"], "s") is None
