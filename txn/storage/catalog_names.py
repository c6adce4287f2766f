"""A table's name in a catalog, where a location may stand: `catalog.schema.table`.

Only Spark knows the folder of a name. `located` asks it once, before anything is read or written;
everything behind it has the folder, as if the program had named that.
"""

from __future__ import annotations

import os
import re
from typing import Protocol

from txn.errors import TopologyError
from txn.storage.locations import identity, normal

__all__ = ["Catalog", "as_location", "is_table_name", "located", "name_beside", "unlocated"]

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*){2}", re.ASCII)


class Catalog(Protocol):
    """Finds the folders of names; `txn.spark.catalog` asks Spark."""

    def registered(self, name: str) -> str | None:
        """Return the folder of a table that the catalog has; None if it has none of that name."""

    def folder(self, name: str) -> str:
        """Return the folder of a table, or the one that a table of that name would get."""


def as_location(path: str | os.PathLike[str]) -> str:
    """Return a path or name as text; a `Path` is a path, whatever it looks like."""
    text = os.fspath(path)
    return f"./{text}" if not isinstance(path, str) and is_table_name(text) else text


def is_table_name(location: str) -> bool:
    """Return whether a location is a name: three plain identifiers, and no folder is called so."""
    return _is_like_a_name(location) and not os.path.lexists(location)


def _is_like_a_name(location: str) -> bool:
    return _NAME.fullmatch(location) is not None


def located(location: str, catalog: Catalog) -> str:
    """Return the folder of a name; any other location unchanged.

    Raises:
        TopologyError: the catalog does not know the name's schema, the name is no Delta table, or
            it is also the name of a folder.
    """
    if not _is_like_a_name(location):
        return location
    if is_table_name(location):
        return normal(catalog.folder(location))
    folder = catalog.registered(location)
    if folder is not None and identity(folder) != identity(location):
        raise TopologyError(
            f"'{location}' could be two tables: the working directory has a folder of that name, "
            f"and Spark's catalog a table, which lies in {normal(folder)}. Write ./{location} for "
            "the first one, or that folder for the second one.",
            number="TXN-127",
        )
    return location


def name_beside(location: str, name: str) -> str | None:
    """Return the name, in the same schema, of a table beside a named one; None beside a path."""
    if not is_table_name(location):
        return None
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"{location.rpartition('.')[0]}.{'t_' if plain[0].isdigit() else ''}{plain}"


def unlocated(name: str) -> TopologyError:
    """Return the refusal of a name where no Spark is there to ask."""
    return TopologyError(
        f"'{name}' is a table's name in Spark's catalog, and its folder is unknown without Spark. "
        f"Name that folder in its place, which is the same table (DESCRIBE EXTENDED {name} shows "
        f"it as Location). If you mean a folder of that name, write ./{name}.",
        number="TXN-127",
    )
