"""The mistakes of a first hour: what is told, word for word (`mistakes.md`), and the way out.

Each case makes the mistake inside `told`, which takes the error down, and then does what the error
says; a case is passed only if that gets through. `TXN_REWRITE=1` writes `mistakes.md` anew, which
is to be read like a page.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from spouts.kafka import KafkaSpout
from tests.faults.support import rows_of
from tests.spouts.kafka_broker import Broker
from txn import Topology, TopologyConfig
from txn.cli.errors import numbered
from txn.config.settings import overridden
from txn.embedded import EmbeddedZooKeeper
from txn.errors import TxnError
from txn.machine.java import find_java
from txn.testing import MemoryNodes, run_in_memory
from txn.topology import Stream

PAGE = Path(__file__).with_name("mistakes.md")
CONFIG = TopologyConfig(
    retry_backoff_ms=0, zookeeper_acl="open", zookeeper_connect_secs=1.0, zookeeper_timeout_secs=6.0
)


class World:
    """A folder with a file of orders, and what a case asks to be run there."""

    def __init__(self, folder: Path, spark: SparkSession, request: pytest.FixtureRequest) -> None:
        self.folder, self.spark = folder, spark
        self._request = request
        self.config = CONFIG
        self.nodes = MemoryNodes()
        self.errors: list[TxnError] = []
        self.file("in/a.csv", "ann,1\nbob,2\n")

    def file(self, name: str, text: str) -> Path:
        """A file with this text."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @property
    def hosts(self) -> str:
        """A real ZooKeeper, in a chroot of this case's."""
        server: EmbeddedZooKeeper = self._request.getfixturevalue("zookeeper")
        return f"{server.hosts}/{self.folder.name}"

    @property
    def kafka(self) -> Broker:
        """A real Kafka broker."""
        broker: Broker = self._request.getfixturevalue("kafka")
        return broker

    def orders(
        self, name: str = "orders", stream: str = "orders", was: str | None = None, **spout: Any
    ) -> Stream:
        """The stream of a new topology."""
        reading: dict[str, Any] = {"format": "csv", "schema": "user string, amount bigint", **spout}
        glob = str(self.folder / reading.pop("glob", "in/*.csv"))
        aside = AppendTable(self.folder / "aside") if "bad_rows" in spout else None
        self.topology = Topology(name, self.config, bad_rows=aside)
        return self.topology.stream(stream, FileSpout(glob, **reading), was=was)

    def totals(self, stream: Stream, **aggregates: Any) -> Topology:
        """The topology, with totals per user of its stream."""
        stream.group_by("user").persistent_aggregate(self.state, **aggregates)
        return self.topology

    @property
    def state(self) -> StateTable:
        """The table of totals."""
        return StateTable(self.folder / "totals", semantics="opaque", layout="log")

    def kept(self, stream: Stream) -> Topology:
        """The topology, with its stream in an append table."""
        stream.partition_persist(AppendTable(self.folder / "kept"))
        return self.topology

    def run(self, topology: Topology, **options: Any) -> None:
        """Run it until it has caught up."""
        if options:
            topology.run(self.spark, until="caught_up", **options)
        else:
            run_in_memory(topology, self.spark, self.nodes)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Make the mistake in here."""
        with pytest.raises(TxnError) as error:
            yield
        self.errors.append(error.value)


Case = Callable[[World], None]
CASES: dict[str, Case] = {}


def mistake(what: str) -> Callable[[Case], Case]:
    """Name a case as a user would."""

    def named(case: Case) -> Case:
        CASES[what] = case
        return case

    return named


@mistake("a row of a CSV file is malformed")
def malformed_row(world: World) -> None:
    """The advice: set such rows aside, or drop them."""
    world.file("in/b.csv", "cid,three\n")
    with world.told():
        world.run(world.kept(world.orders()))
    world.run(world.kept(world.orders(bad_rows="drop")))


@mistake("the header of a CSV file has other names")
def other_header(world: World) -> None:
    """The advice: the schema with the names of the header."""
    world.file("in/a.csv", "name,amount\nann,1\n")
    with world.told():
        world.run(world.kept(world.orders(header=True)))
    # The table holds nothing yet, and takes the other name.
    world.run(world.kept(world.orders(header=True, schema="name string, amount bigint")))


@mistake("a CSV file that comes later has one more column")
def one_more_column(world: World) -> None:
    """The advice: its rows in a new file, with the columns of the schema; the schema is fixed."""
    world.file("in/a.csv", "user,amount\nann,1\n")
    world.run(world.kept(world.orders(header=True)))
    world.file("in/b.csv", "user,amount,more\nbob,2,x\n")
    with world.told():
        world.run(world.kept(world.orders(header=True)))
    world.file("in/c.csv", "user,amount\nbob,2\n")
    world.config = overridden(CONFIG, ["on_exhausted=quarantine"])
    world.run(world.kept(world.orders(header=True)))
    kept = AppendTable(world.folder / "kept").read(world.spark)
    assert kept.select("user", "amount").orderBy("user").collect() == [("ann", 1), ("bob", 2)]


@mistake("a CSV file has semicolons")
def semicolons(world: World) -> None:
    """The advice: how the file is written."""
    world.file("in/a.csv", "user;amount\nann;1\n")
    with world.told():
        world.run(world.kept(world.orders(header=True)))
    world.run(world.kept(world.orders(header=True, sep=";")))


@mistake("a file is cut off")
def damaged_file(world: World) -> None:
    """The advice: set the file aside, and put a whole one there under a new name."""
    whole = gzip.compress(b"ann,1\n" * 1000)
    (world.folder / "in" / "b.csv.gz").write_bytes(whole[:30])
    with world.told():
        world.run(world.kept(world.orders(glob="in/*")))
    (world.folder / "in" / "c.csv.gz").write_bytes(whole)
    world.run(world.kept(world.orders(glob="in/*", bad_rows="set_aside")))
    kept = AppendTable(world.folder / "kept").read(world.spark)
    assert kept.groupBy("user").count().orderBy("user").collect() == [("ann", 1001), ("bob", 1)]


@mistake("an option of the reader is misspelt")
def misspelt_option(world: World) -> None:
    """The nearest option is named."""
    with world.told():
        world.orders(headr=True)
    world.file("in/a.csv", "user,amount\nann,1\n")
    world.run(world.kept(world.orders(header=True)))


@mistake("JSON of another shape")
def other_json(world: World) -> None:
    """The advice: set such rows aside, or drop them."""
    world.file("in/a.json", '{"user": "ann", "amount": {"euro": 1}}\n')
    source = {"glob": "in/*.json", "format": "json"}
    with world.told():
        world.run(world.kept(world.orders(**source)))
    world.run(world.kept(world.orders(**source, bad_rows="drop")))


@mistake("a UDF raises")
def udf_raises(world: World) -> None:
    """The advice: mend the function at the line that is named."""
    with world.told():
        world.run(world.kept(world.orders().transform(with_udf(lambda user: user[4]))))
    world.run(world.kept(world.orders().transform(with_udf(lambda user: user[:1]))))


def with_udf(function: Callable[[str], str]) -> Callable[[DataFrame], DataFrame]:
    """A transform with a UDF."""
    first = sf.udf(function, "string", useArrow=False)
    return lambda df: df.withColumn("user", first("user"))


@mistake("a transform raises")
def transform_raises(world: World) -> None:
    """The advice: mend it at the line that is named."""
    columns = {"who": "user"}
    with world.told():
        world.run(world.kept(world.orders().transform(lambda df: df.select(columns["whom"]))))
    world.run(world.kept(world.orders().transform(lambda df: df.select(columns["who"]))))


@mistake("a transform collects rows by way of pandas, which is not there")
def without_pandas(world: World) -> None:
    """The way out is to stay in Spark."""
    with world.told():
        world.run(world.kept(world.orders().transform(lambda df: df.toPandas())))
    world.run(world.kept(world.orders().transform(lambda df: df)))


@mistake("a column is misspelt in a transform")
def misspelt_in_transform(world: World) -> None:
    """The columns are named."""
    with world.told():
        world.run(world.kept(world.orders().transform(lambda df: df.select("usr"))))
    world.run(world.kept(world.orders().transform(lambda df: df.select("user"))))


@mistake("a column is misspelt in group_by")
def misspelt_key(world: World) -> None:
    """The columns are named."""
    stream = world.orders()
    stream.group_by("usr").persistent_aggregate(world.state, n=Count())
    with world.told():
        world.run(world.topology)
    world.run(world.totals(world.orders(), n=Count()))


@mistake("a column is misspelt in an aggregate")
def misspelt_aggregate(world: World) -> None:
    """The columns are named."""
    with world.told():
        world.run(world.totals(world.orders(), total=Sum("amonut")))
    world.run(world.totals(world.orders(), total=Sum("amount")))


@mistake("a column is misspelt in on=")
def misspelt_on(world: World) -> None:
    """The columns of both sides are named."""

    def joined(on: str) -> Topology:
        orders = world.orders()
        users = world.topology.stream(
            "users",
            FileSpout(f"{world.folder}/in/*.csv", format="csv", schema="user string, n int"),
        )
        return world.kept(orders.join(users, on=on))

    with world.told():
        world.run(joined("usr"))
    world.run(joined("user"))


@mistake("a condition of expect has a column that is not there")
def misspelt_rule(world: World) -> None:
    """The columns are named."""
    with world.told():
        world.run(world.kept(world.orders().expect("positive", "amonut > 0")))
    world.run(world.kept(world.orders().expect("positive", "amount > 0")))


@mistake("a folder that is not there, and no schema")
def wrong_folder(world: World) -> None:
    """The advice: the right path, or a schema."""
    with world.told():
        world.run(world.kept(world.orders(glob="on/*.csv", schema=None)))
    world.run(world.kept(world.orders(schema=None)))


@mistake("a folder that nobody may write to")
def forbidden_folder(world: World) -> None:
    """Not even root may make a folder in /sys."""

    def into(folder: Path) -> Topology:
        stream = world.orders()
        stream.partition_persist(AppendTable(folder / "kept"))
        return world.topology

    with world.told():
        world.run(into(Path("/sys")))
    world.run(into(world.folder))


@mistake("no Java")
def no_java(world: World) -> None:
    """The advice: what to install, or JAVA_HOME."""
    with world.told():
        find_java({"PATH": str(world.folder)})
    find_java({"JAVA_HOME": str(find_java().parents[1])})


@mistake("a Java that is too old")
def old_java(world: World) -> None:
    """The advice: JAVA_HOME of a newer one."""
    java = world.file("jdk/bin/java", "#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with world.told():
        find_java({"JAVA_HOME": str(world.folder / "jdk")})
    find_java({"JAVA_HOME": str(find_java().parents[1])})


@mistake("no ZooKeeper there")
def no_zookeeper(world: World) -> None:
    """The advice: start it, or the right address."""
    with world.told():
        world.run(world.kept(world.orders()), zookeeper="127.0.0.1:1")
    world.run(world.kept(world.orders()), zookeeper=world.hosts)


@mistake("a ZooKeeper with a password, and the program has none")
def no_password(world: World) -> None:
    """The advice: `zookeeper_auth`."""
    owner = CONFIG.model_copy(
        update={"zookeeper_auth": (("digest", SecretStr("me:sesame")),), "zookeeper_acl": "creator"}
    )
    world.config = owner
    world.run(world.kept(world.orders()), zookeeper=world.hosts)
    world.config = CONFIG
    with world.told():
        world.run(world.kept(world.orders()), zookeeper=world.hosts)
    world.config = owner
    world.run(world.kept(world.orders()), zookeeper=world.hosts)


def from_kafka(world: World, servers: str, topic: str) -> Topology:
    """A topology over one topic."""
    world.topology = Topology("orders", CONFIG)
    return world.kept(world.topology.stream("orders", KafkaSpout(servers, topics=[topic])))


@mistake("Kafka is away")
def no_kafka(world: World) -> None:
    """The advice: the right address."""
    with world.told():
        world.run(from_kafka(world, "127.0.0.1:1", "orders"))
    world.run(from_kafka(world, world.kafka.servers, world.kafka.create("orders-there")))


@mistake("a topic is misspelt")
def misspelt_topic(world: World) -> None:
    """The advice: the topics that there are."""
    topic = world.kafka.create("orders-here")
    with world.told():
        world.run(from_kafka(world, world.kafka.servers, "ordres-here"))
    world.run(from_kafka(world, world.kafka.servers, topic))


@mistake("the table of another topology")
def other_topologys_table(world: World) -> None:
    """The advice: a table of its own."""
    world.run(world.kept(world.orders("others")))
    with world.told():
        world.run(world.kept(world.orders()))
    stream = world.orders()
    stream.partition_persist(AppendTable(world.folder / "mine"))
    world.run(world.topology)


@mistake("a table of somebody who does not know of topologies")
def strangers_table(world: World) -> None:
    """The advice: a table of its own."""
    world.spark.range(3).write.format("delta").save(str(world.folder / "kept"))
    with world.told():
        world.run(world.kept(world.orders()))
    stream = world.orders()
    stream.partition_persist(AppendTable(world.folder / "mine"))
    world.run(world.topology)


@mistake("the path of a table is a file")
def file_for_table(world: World) -> None:
    """The advice: a folder."""
    path = world.file("kept", "")
    with world.told():
        world.run(world.kept(world.orders()))
    path.unlink()
    world.run(world.kept(world.orders()))


@mistake("a second driver")
def second_driver(world: World) -> None:
    """The advice: stop the first one, or stand by."""
    first = world.kept(world.orders()).start(world.spark, zookeeper=world.hosts)
    with world.told():
        world.run(world.kept(world.orders()), zookeeper=world.hosts)
    first.stop()
    world.run(world.kept(world.orders()), zookeeper=world.hosts)


@mistake("the columns of a stream changed since the last run")
def other_columns(world: World) -> None:
    """The advice: the former columns, or another table."""
    world.run(world.kept(world.orders()))
    world.file("in/b.csv", "cid,3\n")
    with world.told():
        world.run(world.kept(world.orders(schema="user string, amount string")))
    world.run(world.kept(world.orders()))


@mistake("an aggregate was taken out of a state")
def removed_aggregate(world: World) -> None:
    """The advice: the program that has it, or say that it goes."""
    both: dict[str, Any] = {"n": Count(), "total": Sum("amount")}
    world.run(world.totals(world.orders(), **both))
    with world.told():
        world.run(world.totals(world.orders(), n=Count()))
    world.run(world.totals(world.orders(), **both))
    dropped = (f"{world.folder / 'totals'}:total",)
    world.config = CONFIG.model_copy(update={"dropped_columns": dropped})
    world.run(world.totals(world.orders(), n=Count()))
    assert world.state.read(world.spark).columns == ["user", "n"]


@mistake("a table was taken out of the program")
def removed_sink(world: World) -> None:
    """The advice: put it back, or say that it goes."""

    def both() -> Topology:
        stream = world.orders()
        world.kept(stream)
        return world.totals(stream, n=Count())

    world.run(both())
    with world.told():
        world.run(world.kept(world.orders()))
    world.run(both())
    world.config = CONFIG.model_copy(update={"dropped_tables": (str(world.folder / "totals"),)})
    world.run(world.kept(world.orders()))


@mistake("a table was added to an old topology")
def added_sink(world: World) -> None:
    """The advice: give it its history, or say that it begins later."""

    def both() -> Topology:
        stream = world.orders()
        world.kept(stream)
        return world.totals(stream, n=Count())

    world.run(world.kept(world.orders()))
    world.file("in/b.csv", "cid,3\n")
    with world.told():
        world.run(both())
    totals = str(world.folder / "totals")
    world.config = CONFIG.model_copy(update={"new_tables": (totals,)})
    world.run(both())
    assert [row["user"] for row in world.state.read(world.spark).collect()] == ["cid"]
    made = world.spark.sql(f"SHOW TBLPROPERTIES delta.`{world.folder}/totals` ('txn.firstTxid')")
    assert made.first()["value"] == "2"
    world.config = CONFIG
    world.run(both())


@mistake("a stream was renamed")
def renamed_stream(world: World) -> None:
    """The advice: say that it was renamed; its position is kept."""
    world.run(world.kept(world.orders()))
    with world.told():
        world.run(world.kept(world.orders(stream="all-orders")))
    world.file("in/b.csv", "cid,3\n")
    world.run(world.kept(world.orders(stream="all-orders", was="orders")))
    assert rows_of(world.folder / "kept", "user") == [("ann",), ("bob",), ("cid",)]


@mistake("a stream was taken out of the program")
def removed_stream(world: World) -> None:
    """The advice: say that it goes; put back, it goes on."""

    def program(*, more: bool = True) -> Topology:
        stream = world.orders()
        if more:
            spout = FileSpout(str(world.folder / "more/*.csv"), format="csv", schema="user string")
            stream = stream.merge(
                world.topology.stream("more", spout).transform(
                    lambda df: df.selectExpr("user", "CAST(NULL AS bigint) AS amount")
                )
            )
        return world.kept(stream)

    world.file("more/a.csv", "dan\n")
    world.run(program())
    with world.told():
        world.run(program(more=False))
    world.config = CONFIG.model_copy(update={"dropped_streams": ("more",)})
    world.file("more/b.csv", "eve\n")
    world.run(program(more=False))
    world.run(program())
    users = [(name,) for name in ("ann", "bob", "dan", "eve")]
    assert rows_of(world.folder / "kept", "user") == users


@mistake("a table is named where it is not")
def misnamed_table(world: World) -> None:
    """The advice: the place where it is; there it goes on, wherever that is."""
    world.run(world.kept(world.orders()))
    (world.folder / "kept").rename(world.folder / "moved")
    world.file("in/b.csv", "cid,3\n")
    for name in ("elsewhere", "moved"):
        stream = world.orders()
        stream.partition_persist(AppendTable(world.folder / name))
        with world.told() if name == "elsewhere" else contextlib.nullcontext():
            world.run(world.topology)
    assert rows_of(world.folder / "moved", "user") == [("ann",), ("bob",), ("cid",)]


@mistake("a state is asked for a key that it cannot have")
def wrong_key(world: World) -> None:
    """The advice: keys as tuples or mappings."""
    world.run(world.totals(world.orders(), n=Count()))
    with world.told():
        world.state.get(world.spark, "ann")  # type: ignore[arg-type]
    assert world.state.get(world.spark, [("ann",)]).count() == 1


@mistake("a setting is misspelt")
def misspelt_setting(world: World) -> None:
    """The nearest name is told."""
    with world.told():
        overridden(CONFIG, ["max_batch_attempt=3"])
    assert overridden(CONFIG, ["max_batch_attempts=3"]).max_batch_attempts == 3


@mistake("an older release meets the state of a newer one")
def newer_state(world: World) -> None:
    """The advice: the newer release."""
    world.run(world.kept(world.orders()))
    nodes = dict(world.nodes.data)
    for path, text in nodes.items():
        world.nodes.data[path] = re.sub(rb'"version": ?\d+', b'"version": 99', text)
    with world.told():
        world.run(world.kept(world.orders()))
    world.nodes.data.update(nodes)
    world.run(world.kept(world.orders()))


def cleaned(world: World, error: TxnError) -> str:
    """What is told, without what differs from run to run and from machine to machine."""
    text = numbered(error).replace(str(world.folder), "/home/me").replace(__file__, "orders.py")
    text = text.replace(world.folder.name, "chroot")
    text = re.sub(r"127\.0\.0\.1:(?!1\b)\d+", "SERVER", text)
    text = re.sub(r"(orders\.py:)\d+|(line )\d+", r"\1\2N", text)
    text = re.sub(r"process \d+ on \S+", "process N on host", text)
    return re.sub(r"20\d\d-\d\d-\d\d[T ][\d:.+]+", "TIME", text)


def entries() -> dict[str, str]:
    """The page, by headings."""
    parts = PAGE.read_text("utf-8").split("\n## ")[1:] if PAGE.exists() else []
    return {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize("what", CASES)
def test_a_mistake_is_told_and_its_way_out_works(
    what: str, tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    """One paragraph with the cause, the place and the way out; who takes that gets through."""
    world = World(tmp_path, spark, request)
    CASES[what](world)
    errors = [cleaned(world, error) for error in world.errors]
    assert errors
    assert "\n" not in "".join(errors)
    told = "\n\n".join(errors)
    assert not re.search(r"o\d+\.\w+|py4j|Traceback|\tat ", told)
    if "TXN_REWRITE" in os.environ:
        pages = {**entries(), what: told}
        ordered = "".join(f"\n## {one}\n\n{pages[one]}\n" for one in CASES if one in pages)
        PAGE.write_text(f"# What is told of the mistakes of a first hour\n{ordered}", "utf-8")
    assert entries()[what] == told
