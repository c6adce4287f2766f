"""The JVM behind a session, for features that PySpark does not offer.

Without a JVM (Spark Connect), or with another version of a class, these functions return None, and
the caller does the same through PySpark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from txn.spark.submission import runs_here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["are_stored_twice", "if_known", "jvm_of", "load_quietly"]

T = TypeVar("T")
_loaded: set[str] = set()


def jvm_of(session: SparkSession) -> Any | None:
    """The JVM's classes by name; None if this session has no JVM."""
    return if_known(lambda: session._jvm)


def if_known(call: Callable[[], T]) -> T | None:
    """Make a call; None if the class or method does not exist here, or takes other arguments."""
    from py4j.protocol import Py4JError

    try:
        return call()
    except (AttributeError, TypeError):  # Py4J takes a missing class for a package: not callable
        return None
    except Py4JError as error:
        if type(error) is not Py4JError or "does not exist" not in str(error):
            raise
        return None


def load_quietly(name: str) -> None:
    """Load a class once, and drop what it writes to the terminal while it loads."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or name in _loaded or (jvm := jvm_of(session)) is None:
        return
    _loaded.add(name)
    lang, io = jvm.java.lang, jvm.java.io
    before = lang.System.err
    lang.System.setErr(io.PrintStream(io.OutputStream.nullOutputStream()))
    try:
        loader = lang.Thread.currentThread().getContextClassLoader()
        if_known(lambda: lang.Class.forName(name, True, loader))
    finally:
        lang.System.setErr(before)


def are_stored_twice(checkpoints: Sequence[DataFrame], session: SparkSession) -> bool:
    """Return whether two executors hold the same partition of local checkpoints.

    Only the block manager counts copies, and it lists blocks by the number of their RDD. That
    number is all that is asked of an RDD here; nothing is computed with one.
    """
    jvm = jvm_of(session)
    if jvm is None or runs_here(session.sparkContext.master or "local"):
        return False
    plans = [frame._jdf.queryExecution().analyzed() for frame in checkpoints]
    ids = {str(plan.rdd().id()) for plan in plans}
    executors = jvm.org.apache.spark.SparkEnv.get().blockManager().master().getStorageStatus()
    blocks = " ".join(one.rddBlocks().keySet().mkString(" ") for one in executors).split()
    copies = Counter(block for block in blocks if block.split("_")[1] in ids)
    return any(count > 1 for count in copies.values())
