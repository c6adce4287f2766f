"""The JVM behind a session, for features that PySpark does not offer.

Without a JVM (Spark Connect), or with another version of a class, these functions return None, and
the caller does the same through PySpark.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from txn.errors import SetupError
from txn.spark.submission import runs_here, submitted
from txn.spark.versions import is_submitted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "add_to_driver",
    "are_stored_twice",
    "faster",
    "has_class",
    "if_known",
    "jvm_of",
    "load_quietly",
    "refuse_connect",
    "require_classic",
    "wait_for_reports",
]

T = TypeVar("T")
log = logging.getLogger("txn")
_loaded: set[str] = set()
_slower: set[str] = set()
_NO_CONNECT = (
    "Spark Connect is not supported. A topology runs in the driver, beside Spark's JVM. Run it "
    "there: with `spark-submit`, or with delta_session and the master of the cluster "
    "(spark://..., yarn, k8s://...)."
)


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


def faster(call: Callable[[], T], instead: str) -> T | None:
    """Take a faster way through Java's classes; None, and said once, where they are others.

    Args:
        instead: what is done then; a sentence.
    """
    result = if_known(call)
    if result is None and instead not in _slower:
        _slower.add(instead)
        log.warning("This Spark has other Java classes than Apache's releases. %s", instead)
    return result


def refuse_connect(master: str | None, conf: Mapping[str, str] | None) -> None:
    """Refuse Spark Connect, before anything is started.

    Raises:
        SetupError: the master, a setting of the program or of the submitter, or the environment
            asks for it; or the submitter's settings cannot be read.
    """
    # spark-submit would have started no Java for Connect.
    settings = {**({} if is_submitted() else submitted()), **(conf or {})}
    master = master or settings.get("spark.master") or ""
    # pyspark takes these variables for set even if they are empty.
    variables = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    asked = {name: os.environ[name] for name in variables if name in os.environ}
    if master.startswith("sc://"):
        asked["the master"] = master
    if "spark.remote" in settings:
        asked["spark.remote"] = settings["spark.remote"]
    # pyspark asks the variable only if the program does not name the mode.
    name = "spark.api.mode" if "spark.api.mode" in settings else "SPARK_API_MODE"
    mode = settings.get(name) or os.environ.get(name, "")
    if mode.lower() == "connect":
        asked[name] = mode
    for name, value in asked.items():
        unset = f" Unset {name} for that." if name in os.environ else ""
        raise SetupError(f"{name} is '{value}': {_NO_CONNECT}{unset}", number="TXN-219")


def require_classic(session: SparkSession) -> None:
    """Refuse a session of Spark Connect: staging and commit turns need the driver's JVM.

    Raises:
        SetupError: it is one.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise SetupError(f"The session is one of Spark Connect: {_NO_CONNECT}", number="TXN-219")


def wait_for_reports(secs: float) -> None:
    """Wait until Spark's listeners have heard of every job that has ended."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    context._jsc.sc().listenerBus().waitUntilEmpty(int(secs * 1000))


def has_class(name: str) -> bool:
    """Return whether the driver's JVM, which must run, has a class."""
    from py4j.protocol import Py4JJavaError

    jvm = _driver_jvm()
    try:
        jvm.java.lang.Class.forName(name, False, _class_loader(jvm))
    except Py4JJavaError:  # ClassNotFoundException, or a class that it needs is missing
        return False
    return True


def add_to_driver(jars: Sequence[Path]) -> bool:
    """Put jars behind the class path of the running driver, as `spark-submit --jars` does.

    Returns:
        False if its class loader takes none.
    """
    jvm = _driver_jvm()
    loader = _class_loader(jvm)
    if "MutableURLClassLoader" not in str(loader.getClass().getName()):
        return False
    for jar in jars:
        loader.addURL(jvm.java.net.URL(jar.as_uri()))
    return True


def _driver_jvm() -> Any:
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _class_loader(jvm: Any) -> Any:
    """Return the class loader that has the jars given to Spark."""
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()


def load_quietly(name: str) -> None:
    """Load a class once, and drop what it writes to the terminal while it loads."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or name in _loaded or (jvm := jvm_of(session)) is None:
        return
    _loaded.add(name)
    lang, io = jvm.java.lang, jvm.java.io
    before = lang.System.err
    lang.System.setErr(io.PrintStream(io.OutputStream.nullOutputStream()))
    try:
        with suppress(Py4JError):  # another version does not have it
            lang.Class.forName(name, True, _class_loader(jvm))
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
