"""Options of Spark's readers: what no reader of the format knows is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spouts.files import FileSpout
from spouts.kafka import KafkaSpout
from spouts.records.options import is_known
from txn.errors import TopologyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("form", "options", "said"),
    [
        ("csv", {"headr": True}, "Did you mean header? Correct it"),
        ("csv", {"HEADR": True}, "an option HEADR, which Spark's reader of csv does not know"),
        ("csv", {"quoting": 1}, "Did you mean quote"),
        ("json", {"header": True}, "an option header, which Spark's reader of json does not know"),
        ("json", {"xyzzy": 1}, "would pass over. Correct it, or leave it out. extra_options={}"),
        ("parquet", {"merge_schema": True}, "Did you mean mergeSchema"),
        ("text", {"multiLine": True}, "an option multiLine, which"),
        ("csv", {"fs.s3a.endpoint": "x"}, "extra_options={} takes what only a codec"),
    ],
)
def test_an_option_that_no_reader_knows_is_refused(
    form: Any, options: dict[str, Any], said: str
) -> None:
    """Spark would pass over it; the error has the names that come near, and the way out works."""
    with pytest.raises(TopologyError) as caught:
        FileSpout("in/*", format=form, **options)
    assert said in str(caught.value)
    assert caught.value.number == "TXN-408"
    spout = FileSpout("in/*", format=form, extra_options=options)
    assert options.items() <= spout._options.items()


@pytest.mark.parametrize(
    ("form", "wrong", "said", "right"),
    [
        ("csv", {"encoding": "cp1252"}, "cannot read csv as CP1252, only as ISO-", "iso-8859-1"),
        ("csv", {"encoding": "utf8"}, "cannot read csv as UTF8, only as .*UTF-8. Say one", "utf-8"),
        ("json", {"CHARSET": "cp1252"}, "cannot read json as CP1252, only as", "utf8"),
        ("csv", {"locale": "xx-nonsense"}, "locale='xx-nonsense' names no language", "de-DE"),
        ("json", {"locale": "de_DE"}, "Write it as 'de-DE' or 'fr'", "gsw-CH"),
    ],
)
def test_an_encoding_or_locale_that_spark_does_not_know_is_refused_at_the_start(
    spark: SparkSession, form: Any, wrong: dict[str, Any], said: str, right: str
) -> None:
    """Before a table is made; a session that takes all encodings of Java has each of them."""
    spout = FileSpout("in/*", format=form, schema="a int", **wrong)
    with pytest.raises(TopologyError, match=said) as caught:
        spout.open(spark, None)
    assert caught.value.number == "TXN-408"
    FileSpout("in/*", format=form, schema="a int", **dict.fromkeys(wrong, right)).open(spark, None)
    if "locale" not in wrong:
        session = spark.newSession()
        session.conf.set("spark.sql.legacy.javaCharsets", "true")
        spout.open(session, None)


def test_a_pattern_is_text_or_a_path() -> None:
    """A path is taken as tables take it; a list of patterns is refused with what to do instead."""
    assert repr(FileSpout(Path("in/*.csv"), format="csv")) == "FileSpout('in/*.csv')"
    with pytest.raises(TopologyError, match=r"FileSpout\(\['a', 'b'\]\) needs one pattern"):
        FileSpout(["a", "b"], format="csv")  # type: ignore[arg-type]


def test_value_options_are_held_to_the_same_names() -> None:
    """Those of a KafkaSpout are of Spark's parsers, which take nothing of anybody else."""
    with pytest.raises(TopologyError) as caught:
        KafkaSpout(
            "127.0.0.1:1",
            topics=["t"],
            value_format="json",
            schema="v int",
            value_options={"new_columns": "add"},
        )
    assert "an option new_columns, which Spark's reader of json" in str(caught.value)
    assert "extra_options" not in str(caught.value)


@pytest.mark.parametrize(
    ("form", "registry"),
    [
        ("csv", "catalyst.csv.CSVOptions"),
        ("json", "catalyst.json.JSONOptions"),
        ("parquet", "execution.datasources.parquet.ParquetOptions"),
        ("text", "execution.datasources.text.TextOptions"),
    ],
)
def test_every_option_of_spark_is_known(spark: SparkSession, form: str, registry: str) -> None:
    """Spark's own lists have no name that is refused here; one of a newer Spark is refused."""
    found: Any = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    for name in registry.split("."):
        found = getattr(found, name)
    names = found.getAllOptions().mkString(",").split(",")
    assert len(names) > 3
    assert [name for name in names if not is_known(form, name)] == []
    newer = [name for name in ("extension", "singleVariantColumn", "timeFormat", "useUnsafeRow")
             if is_known(form, name)]  # fmt: skip
    assert [name for name in newer if is_refused(form, name)] == [
        name for name in newer if name not in names
    ]


def is_refused(form: Any, option: str) -> bool:
    """Return whether a spout refuses an option of a newer Spark by name."""
    try:
        FileSpout("in/*", format=form, **{option: "x"})
    except TopologyError as error:
        return f"{option}, which is new in Spark 4." in str(error)
    return False
