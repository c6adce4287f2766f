"""What a program may change while its state lives: two descriptions in, differences out. Pure.

A table's log describes the table (`TableShape.of_properties`), and the program describes the table
that it needs. `compare_tables` returns every difference at once, each with its verdict.
"""

from __future__ import annotations

from txn.changes.change import Change, Verdict, clauses, describe_refused, refused
from txn.changes.expiry import Expiry
from txn.changes.shape import EXPIRY, STORED, TableShape, former_name
from txn.changes.tables import IN_NEXT_GENERATION, compare_tables, half_published, is_taken_back

__all__ = [
    "EXPIRY",
    "IN_NEXT_GENERATION",
    "STORED",
    "Change",
    "Expiry",
    "TableShape",
    "Verdict",
    "clauses",
    "compare_tables",
    "describe_refused",
    "former_name",
    "half_published",
    "is_taken_back",
    "refused",
]
