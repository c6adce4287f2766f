"""The session that a thread's expressions take their settings from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from txn.spark.jvm import jvm_of
from txn.spark.own_session import make_active


def type_of_a_timestamp(spark: SparkSession) -> str:
    """What `cast("timestamp")` means in this thread, once `spark` is active there."""
    make_active(spark)
    assert SparkSession.getActiveSession() is spark
    return str(spark.range(1).select(sf.lit("2024-01-01").cast("timestamp")).dtypes[0][1])


def test_a_thread_has_the_session_that_was_made_active_there(spark: SparkSession) -> None:
    """PySpark and Java know it by the names used here; another thread keeps its own session."""
    other = spark.newSession()
    other.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    make_active(spark)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(type_of_a_timestamp, other).result() == "timestamp_ntz"
        jvm = jvm_of(spark)
        assert jvm is not None
        active = jvm.org.apache.spark.sql.SparkSession.getActiveSession().get()
        assert active.equals(spark._jsparkSession)
    assert type_of_a_timestamp(spark) == "timestamp"
