"""What readers without Spark need: the extra `reader`, and a connection of DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txn.errors import SetupError

if TYPE_CHECKING:
    import duckdb

__all__ = ["connect", "missing"]


def connect() -> duckdb.DuckDBPyConnection:
    """Open a new connection, in UTC.

    Raises:
        SetupError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise missing("duckdb") from error
    connection = duckdb.connect()
    connection.sql("SET TimeZone = 'UTC'")
    return connection


def missing(library: str) -> SetupError:
    """Return the error for a library of the extra that is not installed."""
    return SetupError(
        f"A table is read without Spark by DuckDB, and {library} is not installed: "
        "pip install 'txn-spark[reader]'.",
        number="TXN-211",
    )
