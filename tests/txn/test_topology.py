"""How a topology is described, and what is refused while it is."""

from __future__ import annotations

import pytest

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.errors import TopologyError
from txn.interfaces import SpoutKind, State
from txn.testing.recording_committer import RecordingCommitter

SCHEMA = "k string, v int"


def transactional() -> MemoryTransactionalSpout:
    """A spout whose replays are identical."""
    return MemoryTransactionalSpout([[("a", 1)]], SCHEMA)


def opaque(kind: SpoutKind = SpoutKind.OPAQUE) -> MemoryOpaqueSpout:
    """A spout whose replays may differ."""
    return MemoryOpaqueSpout({(1, 0): [("a", 1)]}, SCHEMA, kind=kind)


@pytest.fixture
def topology() -> Topology:
    """An empty topology."""
    return Topology("totals")


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "-x", "a b", "ä", "x" * 129, None, "a\n"])
def test_a_name_that_could_not_be_a_znode_is_refused(name):
    """The name is the durable identity: it must be one plain node name."""
    with pytest.raises(TopologyError, match="cannot name a topology"):
        Topology(name)


@pytest.mark.parametrize("name", ["a", "flights-2013", "A.b_c", "7", "x" * 128])
def test_plain_names_are_accepted(name):
    """Letters, digits, '.', '_' and '-'."""
    assert name == Topology(name).name


def test_the_default_configuration_is_that_of_topology_config():
    """Without a configuration, every field has its default."""
    assert TopologyConfig() == Topology("t").config


def test_a_topology_shows_its_name_its_streams_and_its_tables(topology):
    """What a notebook, a debugger and `print` show."""
    assert repr(topology) == "<Topology 'totals': streams none; tables none>"
    topology.stream("rows", transactional()).partition_persist(AppendTable("warehouse/rows"))
    assert repr(topology) == "<Topology 'totals': streams rows; tables warehouse/rows>"


def test_a_stream_name_with_a_slash_is_refused(topology):
    """Stream names are durable as well."""
    with pytest.raises(TopologyError, match=r"'a/b' cannot name a stream"):
        topology.stream("a/b", transactional())


def test_two_streams_of_one_name_are_refused(topology):
    """Progress is kept by stream name.

    Trident row 16.
    """
    topology.stream("s", transactional())
    with pytest.raises(TopologyError, match=r"'totals' has a stream 's' already"):
        topology.stream("s", transactional())


def test_a_former_name_that_could_mean_two_streams_is_refused(topology):
    """Two streams cannot go on from one position, in whichever order they are declared."""
    topology.stream("sales", transactional(), was="orders")
    with pytest.raises(TopologyError, match=r"a stream 'orders', and stream 'sales' was 'orders'"):
        topology.stream("orders", transactional())
    with pytest.raises(TopologyError, match=r"Streams 'sales' and 'more' .* were both 'orders'"):
        topology.stream("more", transactional(), was="orders")
    for was in ("sales", "more"):
        with pytest.raises(TopologyError, match=rf"a stream '{was}', and stream 'more' was"):
            topology.stream("more", transactional(), was=was)
    with pytest.raises(TopologyError, match=r"'a/b' cannot name a stream"):
        topology.stream("more", transactional(), was="a/b")
    assert topology.definition.renamed == {"orders": "sales"}


def test_a_stream_needs_a_spout(topology):
    """Something that is no Spout is named with its type."""
    with pytest.raises(TopologyError, match=r"Stream 's' of topology 'totals' was given list"):
        topology.stream("s", [1, 2])  # type: ignore[arg-type]


def test_a_transform_needs_a_function(topology):
    """A DataFrame handed to transform, for example, is no function."""
    with pytest.raises(TopologyError, match=r"transform\(\) of stream 's' needs a function"):
        topology.stream("s", transactional()).transform("v > 1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((), r"group_by\(\) of stream 's' names no column"),
        (("k", "k"), r"Column 'k' is named twice for stream 's'"),
        (("",), r"'' is not a column name \(stream 's'\)"),
        ((3,), r"3 is not a column name \(stream 's'\)"),
    ],
)
def test_keys_must_be_distinct_column_names(topology, keys, message):
    """Grouping by nothing, by a column twice or by no column at all is refused."""
    with pytest.raises(TopologyError, match=message):
        topology.stream("s", transactional()).group_by(*keys)


@pytest.mark.parametrize("method", ["aggregate", "persistent_aggregate"])
def test_an_aggregation_needs_an_aggregate(topology, tmp_path, method):
    """Without any named aggregate there is nothing to compute."""
    grouped = topology.stream("s", transactional()).group_by("k")
    arguments = [StateTable(str(tmp_path))] if method == "persistent_aggregate" else []
    with pytest.raises(TopologyError, match=r"No aggregate was named for stream 's'"):
        getattr(grouped, method)(*arguments)


def test_a_value_that_is_no_aggregate_is_refused_by_name(topology):
    """`n="count"` is no Aggregate."""
    with pytest.raises(TopologyError, match=r"Value 'n' of stream 's' is str, not an Aggregate"):
        topology.stream("s", transactional()).group_by("k").aggregate(n="count")


def test_a_value_named_like_a_key_is_refused(topology):
    """Each column of the result needs a name of its own."""
    with pytest.raises(TopologyError, match=r"Column 'k' is named twice for stream 's'"):
        topology.stream("s", transactional()).group_by("k").aggregate(k=Count())


def test_persistent_aggregate_needs_a_state(topology, tmp_path):
    """An append table cannot hold running totals."""
    grouped = topology.stream("s", transactional()).group_by("k")
    with pytest.raises(TopologyError, match=r"stream 's' needs a StateTable, not AppendTable"):
        grouped.persistent_aggregate(AppendTable(str(tmp_path)), n=Count())


def test_partition_persist_needs_an_append_table(topology, tmp_path):
    """A state table cannot hold rows."""
    stream = topology.stream("s", transactional())
    with pytest.raises(TopologyError, match=r"stream 's' needs an AppendTable, not StateTable"):
        stream.partition_persist(StateTable(str(tmp_path)))


def test_one_table_cannot_be_the_end_of_two_streams(topology, tmp_path):
    """A table holds one publication per txid."""
    stream = topology.stream("s", transactional())
    stream.partition_persist(AppendTable(str(tmp_path / "t")))
    with pytest.raises(TopologyError, match=r"a committer for table '.*t' already"):
        stream.partition_persist(AppendTable(str(tmp_path / "t")))


@pytest.mark.parametrize("names", [("t", "t/sub"), ("a/t/sub", "a/t")])
def test_a_table_in_the_folder_of_another_one_is_refused(topology, tmp_path, names):
    """A VACUUM of the outer one would delete the files of the inner one."""
    stream = topology.stream("s", transactional())
    first, second = (AppendTable(str(tmp_path / name)) for name in names)
    stream.partition_persist(AppendTable(str(tmp_path / "t-sub")))
    stream.partition_persist(first)
    with pytest.raises(TopologyError, match=r"'.*t/sub' .* in the folder of table '.*t'") as error:
        stream.partition_persist(second)
    assert error.value.number == "TXN-110"


@pytest.mark.parametrize(
    ("spout", "semantics", "accepted"),
    [
        ("transactional", "transactional", True),
        ("transactional", "opaque", True),
        ("transactional", "non_transactional", True),
        ("opaque", "transactional", False),
        ("opaque", "opaque", True),
        ("opaque", "non_transactional", True),
        ("non_transactional", "transactional", False),
        ("non_transactional", "opaque", False),
        ("non_transactional", "non_transactional", True),
    ],
)
@pytest.mark.parametrize("table", ["append", "state"])
def test_a_table_that_relies_on_more_than_the_spout_promises_is_refused(
    topology, tmp_path, spout, semantics, accepted, table
):
    """Building a topology fails if a spout promises less than a table relies on.

    Trident row 61.
    """
    source = transactional() if spout == "transactional" else opaque(SpoutKind(spout))
    stream = topology.stream("s", source).transform(lambda df: df)

    def persist() -> None:
        if table == "append":
            stream.partition_persist(AppendTable(str(tmp_path), semantics=semantics))
        else:
            state = StateTable(str(tmp_path), semantics=semantics)
            stream.group_by("k").persistent_aggregate(state, n=Count())

    if accepted:
        persist()
        assert len(topology.sinks) == 1
    else:
        with pytest.raises(TopologyError, match=rf"Stream 's' has an? {spout} spout.*{semantics}"):
            persist()


def test_the_weakest_of_merged_streams_decides_the_pairing(topology, tmp_path):
    """One opaque stream among transactional ones makes the whole batch opaque."""
    merged = topology.stream("firm", transactional()).merge(topology.stream("weak", opaque()))
    with pytest.raises(TopologyError, match=r"Stream 'weak' has an opaque spout"):
        merged.partition_persist(AppendTable(str(tmp_path), semantics="transactional"))


def test_streams_of_two_topologies_do_not_meet(topology):
    """Only streams that share txids can be merged or joined."""
    mine, other = topology.stream("s", transactional()), Topology("o").stream("x", transactional())
    with pytest.raises(TopologyError, match=r"Stream 'x' belongs to topology 'o'"):
        mine.merge(other)
    with pytest.raises(TopologyError, match=r"Stream 'x' belongs to topology 'o'"):
        mine.join(other, on="k")


def test_a_join_needs_a_column(topology):
    """A cross product of two streams is not meant by leaving `on` empty."""
    left, right = topology.stream("l", transactional()), topology.stream("r", transactional())
    with pytest.raises(TopologyError, match=r"join\(\) of stream 'l' names no column"):
        left.join(right, on=[])


def test_a_topology_without_a_committer_is_refused_before_it_starts(topology):
    """A stream that ends nowhere would be read and lost."""
    topology.stream("s", transactional())
    with pytest.raises(TopologyError, match=r"Topology 'totals' ends nowhere"):
        topology.start(None)  # type: ignore[arg-type]  # refused before Spark is touched


def test_a_stream_that_reaches_no_committer_is_refused_before_it_starts(topology, tmp_path):
    """Its records would be marked as processed and be in no table."""
    topology.stream("kept", transactional()).partition_persist(AppendTable(str(tmp_path)))
    topology.stream("lost", transactional())
    with pytest.raises(TopologyError, match=r"Stream 'lost' of topology 'totals' reaches no"):
        topology.start(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("until", ["caught-up", 0, -1, True, 1.5, None])
def test_an_end_that_means_nothing_is_refused(topology, tmp_path, until):
    """`until` is "forever", "caught_up" or a txid from 1."""
    topology.stream("s", transactional()).partition_persist(AppendTable(str(tmp_path)))
    with pytest.raises(TopologyError, match=r"until=.* is not valid"):
        topology.start(None, until=until)  # type: ignore[arg-type]


def test_tables_publish_in_the_order_in_which_they_were_declared(topology, tmp_path):
    """The order of sinks is the order of publications within a txid."""
    stream = topology.stream("s", transactional())
    stream.partition_persist(AppendTable(str(tmp_path / "b")))
    state = stream.group_by("k").persistent_aggregate(StateTable(str(tmp_path / "a")), n=Count())
    assert [str(tmp_path / "b"), str(tmp_path / "a")] == [sink.name for sink in topology.sinks]
    assert str(tmp_path / "a") == state.name


def test_every_method_returns_a_new_stream_and_leaves_the_old_one(topology, tmp_path):
    """Streams are values: one can be the beginning of several."""
    stream = topology.stream("s", transactional())
    large = stream.transform(lambda df: df.where("v > 10"))
    totals = stream.aggregate(total=Sum("v"))
    assert len({stream, large, totals}) == 3
    assert tuple(source.name for source in topology.sources) == ("s",)


def test_new_values_that_a_table_cannot_tell_are_refused_when_they_are_asked_for(
    topology, tmp_path
):
    """A committer without changes, columns of one name, removal that no replay could undo: the
    topology is not built, so that `txn plan` says so, too.
    """

    class Recorded(State):
        """A state kept by a committer that tells nothing."""

        path = str(tmp_path / "recorded")

        def bind(self, keys, aggregates):
            return RecordingCommitter(self.path)

        def snapshot(self, spark, version, aggregates=None):
            raise AssertionError("nothing is read")

    by_key = topology.stream("s", MemoryOpaqueSpout({}, "k string, prev_n string")).group_by
    with pytest.raises(TopologyError, match="recorded has no new values"):
        by_key("k").persistent_aggregate(Recorded(), n=Count()).new_values()
    log = StateTable(tmp_path / "log", layout="log")
    with pytest.raises(TopologyError, match="need a column 'prev_n'"):
        by_key("prev_n").persistent_aggregate(log, n=Count()).new_values()
    again = StateTable(tmp_path / "t", "non_transactional", "log", remove_where="n = 0")
    with pytest.raises(TopologyError, match="rows that a failed attempt removed stay removed"):
        by_key("k").persistent_aggregate(again, n=Count())
    StateTable(tmp_path / "u", layout="log", remove_where="n = 0").bind(["k"], {"n": Count()})
