"""The sessions that compute and write a table's rows, independent of the user's session.

Spark takes its settings from the session of a DataFrame: some when it analyses an expression, some
when a job runs. A user's transforms are analysed in the user's session, and its settings hold. The
job that writes their rows runs in `own_session`: it has all of the user's settings except those
for writing Parquet. A table's own work (the join of a commit turn, compaction) runs in a
`computing_session`, with Spark's own defaults for every setting that could change a value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from txn.errors import TopologyError
from txn.spark.differences import all_settings, java_sessions, setting
from txn.spark.jvm import jvm_of
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "DEFAULT",
    "SettingsWatch",
    "computing_session",
    "make_active",
    "moved",
    "own_session",
    "same_setting",
    "settings_of",
    "to_write",
]

_WRITING = {
    # INT96, Spark's default, is deprecated. Readers that read it as a number of nanoseconds
    # cannot go beyond the year 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    "spark.sql.parquet.compression.codec": "snappy",
    # Delta's writer: no shuffle of its own before it, which would put rows of several txids into
    # one file; no statistics (they are read from footers) and no look at each file for metrics.
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.history.metricsEnabled": "false",
}
_COMPUTING = {
    **_WRITING,
    # A value out of its type's range must raise an error, not wrap or become NULL.
    "spark.sql.ansi.enabled": "true",
    # For files that do not name their writer, such as those of another program's OPTIMIZE.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
}
_DEFAULTS = "spark.databricks.delta.properties.defaults."
"""Properties of a user's new tables, such as column mapping; never for a topology's tables."""
_FROM_THE_USER = ("spark.sql.session.timeZone", "spark.sql.caseSensitive")
_CHANGE_VALUES = (
    "spark.sql.ansi.",
    "spark.sql.decimalOperations.",
    "spark.sql.files.ignore",
    "spark.sql.legacy.",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.parquet.",
    "spark.sql.timestampType",
)

_WATCHED = (
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.session.timeZone",
    "spark.sql.timestampType",
)
"""Settings that change a transform's result for a row; checked again after each job."""
_RECORDED = (
    *_WATCHED,
    "spark.sql.avro.datetimeRebaseModeInRead",
    "spark.sql.columnNameOfCorruptRecord",
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.parquet.binaryAsString",
    "spark.sql.parquet.datetimeRebaseModeInRead",
    "spark.sql.parquet.inferTimestampNTZ.enabled",
    "spark.sql.parquet.int96AsTimestamp",
    "spark.sql.parquet.int96RebaseModeInRead",
)
"""The settings above, and those that change how a source reads a file."""
_HIDDEN = "spark.sql.redaction.options.regex"
_LEGACY = "spark.sql.legacy."
_UTC = frozenset(["utc", "etc/utc", "gmt", "etc/gmt", "z", "+00:00", "etc/universal", "zulu"])
DEFAULT = "default"
"""The recorded value of a setting that a session does not have."""

_own: WeakSet[SparkSession] = WeakSet()
"""Every session made here."""
_settings: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()
"""An `own_session` -> the recorded settings of the user's session."""
_new: WeakKeyDictionary[SparkContext, Mapping[str, str]] = WeakKeyDictionary()
"""Context -> the settings of a new session."""
_NO_ROWS = "_txn_no_rows"
"""Attribute of a session: empty DataFrames, by their columns. They keep the session alive, so
only the session itself may hold them."""


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return the settings that change the results of transforms and sources, with their values.

    They include legacy flags of Spark that are not at their default. For an `own_session`, they are
    those of the user's session when it was made.
    """
    return _settings[spark] if spark in _settings else _read_settings(spark, all_settings(spark))


def _read_settings(spark: SparkSession, everything: Mapping[str, str]) -> dict[str, str]:
    settings = {key: _value(spark, key) for key in _RECORDED}
    flags = [key for key in everything if key.startswith(_LEGACY) and key not in settings]
    if flags:
        fresh = spark.newSession()
        for key in flags:
            _unset(fresh, key)
            if everything[key] != _value(fresh, key):
                settings[key] = everything[key]
    return settings


def _value(spark: SparkSession, key: str) -> str:
    """A setting's value, or Spark's default; `DEFAULT` if Spark does not have the setting."""
    value = setting(spark, key)
    return DEFAULT if value is None else value


def same_setting(one: str, other: str) -> bool:
    """Return whether two values of a setting mean the same, in any case and any name of UTC."""
    left, right = one.lower(), other.lower()
    return left == right or (left in _UTC and right in _UTC)


class SettingsWatch:
    """Refuses a session whose settings change while a topology runs in it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._at_start = {key: _value(spark, key) for key in _WATCHED}

    def check(self) -> None:
        """Compare the settings with those at the start of the run.

        Raises:
            TopologyError: naming the setting and both values.
        """
        for key, before in self._at_start.items():
            current = _value(self._spark, key)
            if not same_setting(before, current):
                raise TopologyError(
                    f"{key} was changed from {before} to {current} in the session in which the "
                    "topology runs, so transforms would compute other values for later rows. "
                    "Nothing was stored with it. Set it back and run again; use another session "
                    "for other work (spark.newSession()).",
                    number="TXN-115",
                )


def own_session(spark: SparkSession) -> SparkSession:
    """A session over the same executors with the user's current settings, but txn's for writing.

    Returns a session made here unchanged.
    """
    from pyspark.errors import AnalysisException

    if spark in _own:
        return spark
    session = spark.newSession()
    user_settings, own_settings = all_settings(spark), _initial_settings(session)
    for key in own_settings:
        if key not in user_settings or key.startswith(_DEFAULTS):
            _unset(session, key)
    for key, value in user_settings.items():
        if own_settings.get(key) != value and not key.startswith(_DEFAULTS):
            try:
                session.conf.set(key, value)
            except AnalysisException:
                continue  # a setting of the whole context, which this session has too
    _settings[session] = _read_settings(spark, user_settings)
    return _configured(session, _WRITING)


def computing_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """A session over the same executors for txn's own expressions, with `conf` added."""
    session = spark.newSession()
    for key in _initial_settings(session):
        if key.startswith(_CHANGE_VALUES):
            _unset(session, key)
    user_settings = {key: str(spark.conf.get(key)) for key in _FROM_THE_USER}
    # Access to storage, if it is set only in the user's session.
    user_settings |= {k: v for k, v in all_settings(spark).items() if k.startswith("fs.")}
    return _configured(session, {**_COMPUTING, **user_settings, **conf})


def _initial_settings(session: SparkSession) -> Mapping[str, str]:
    """The settings of a session that was just made, read once for all sessions of a context.

    Reading them takes four calls into Java for each setting.
    """
    context = session.sparkContext
    if context not in _new:
        _new[context] = all_settings(session)
    return _new[context]


def make_active(spark: SparkSession) -> None:
    """Make `spark` the active session of this thread.

    `Column.cast("timestamp")`, columns written as DDL, and `SparkSession.active()` use the thread's
    session, not the DataFrame's. A new thread has the first session of the process, whose
    `spark.sql.timestampType` may differ, and which lacks the user's views. And PySpark notes the
    user's line with each expression, for errors, only in a thread whose session was made active;
    it decides whether to do so once, at the first expression of the process.
    """
    from pyspark.sql import SparkSession

    # PySpark has no public call that does this, and notes the session in two places.
    if (jvm := jvm_of(spark)) is not None:
        SparkSession._activeSession = spark
        java_sessions(jvm).setActiveSession(spark._jsparkSession)


def _unset(session: SparkSession, key: str) -> None:
    """Reset a setting to Spark's default; a setting of the whole context stays as it is."""
    from pyspark.errors import AnalysisException

    with contextlib.suppress(AnalysisException):
        session.conf.unset(key)


def _configured(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    # Spark shows a writer's options in plans; by default it does not hide the keys of Azure's
    # accounts, nor the encryption keys of S3 (SSE-C).
    hidden = f"{session.conf.get(_HIDDEN)}|(account|encryption)[.]key"
    for key, value in {**conf, _HIDDEN: hidden}.items():
        session.conf.set(key, value)
    _own.add(session)
    return session


def to_write(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Move rows to `session`, unless their session was made here."""
    return frame if frame.sparkSession in _own else moved(frame, session)


def moved(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Move rows to another session: jobs over the result run there.

    A union takes the session of its first side; the optimizer removes that empty side.
    """
    if frame.sparkSession is session:
        return frame
    empty_frames: dict[str, DataFrame] = vars(session).setdefault(_NO_ROWS, {})
    key = frame.schema.json()
    if key not in empty_frames:
        empty_frames[key] = no_rows(session, frame.schema)
    return empty_frames[key].unionAll(frame)
