"""Every row of docs/changing.md, "What may change", has a test over real tables."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "changing.md"

PROVEN_BY = {
    "a value (aggregate) of a state table is new": (
        "committers/test_changing_shape.py::test_a_new_value_begins_with_the_next_txid",
    ),
    "a value is gone": (
        "committers/test_changing_shape.py::test_a_value_goes_away_only_if_a_setting_says_so",
        "committers/test_changing_shape.py::test_a_value_that_a_rebuild_adds_begins_afresh",
    ),
    "a value has another aggregate under the same name": (
        "committers/test_changing_shape.py::test_another_aggregate_under_the_same_name_is_refused",
    ),
    "values are in another order": (
        "committers/test_changing_shape.py::test_values_in_another_order_change_nothing",
    ),
    'a key or value is renamed, `user` to `customer`: `StateTable(..., columns_were={"customer": '
    '"user"})`, new name: former name': (
        "committers/test_changing_shape.py::test_a_rebuilt_table_goes_on_as_if_it_had_always_been_so",
    ),
    "a key is gone": (
        "committers/test_changing_shape.py::test_a_key_that_goes_away_merges_its_rows",
        "committers/test_changing_shape.py::test_a_fold_cannot_be_merged",
    ),
    "a key is new": ("committers/test_changing_shape.py::test_every_difference_is_told_at_once",),
    "a type of a key, value or column, by a cast in a transform (a spout keeps its `schema`, "
    "TXN-411)": (
        "committers/test_changing_shape.py::test_types_are_widened_by_a_rebuild",
        "committers/test_changing_shape.py::test_types_without_a_cast",
    ),
    "`layout`, `buckets`, the order of keys (`upsert`)": (
        "committers/test_changing_shape.py::test_a_rebuilt_table_goes_on_as_if_it_had_always_been_so",
    ),
    "`semantics`": (
        "committers/test_changing_shape.py::test_a_rebuilt_table_goes_on_as_if_it_had_always_been_so",
        "committers/test_changing_shape.py::test_removed_keys_stay_away_under_other_semantics",
    ),
    "`remove_where` begins (`upsert`) or changes": (
        "committers/test_changing_shape.py::test_removal_begins_and_ends",
    ),
    "`remove_where` begins (`log`) or ends": (
        "committers/test_changing_shape.py::test_removal_begins_and_ends",
    ),
    "keys begin to end (`expire_after`)": (
        "committers/test_state_table_expiry.py::test_the_rule_begins_changes_and_ends",
    ),
    "keys end earlier, by the same time": (
        "committers/test_state_table_expiry.py::test_the_rule_begins_changes_and_ends",
    ),
    "keys end later, by another time, or no more": (
        "committers/test_state_table_expiry.py::test_the_rule_begins_changes_and_ends",
    ),
    "a column of an append table is new, or in another order": (
        "committers/test_changing_shape.py::test_columns_of_an_append_table",
    ),
    "a column of an append table is gone": (
        "committers/test_changing_shape.py::test_columns_of_an_append_table",
    ),
    "a column of an append table is renamed: `AppendTable(..., columns_were={...})`": (
        "committers/test_changing_shape.py::test_columns_of_an_append_table",
    ),
    'a stream is renamed: `topology.stream("sales", spout, was="orders")`': (
        "faults/test_changed_streams.py::test_a_renamed_stream_reads_every_record_once",
    ),
    "a stream is gone": (
        "faults/test_changed_streams.py::test_a_dropped_stream_goes_on_where_it_was",
    ),
    "a stream is new": (
        "faults/test_changed_streams.py::test_an_added_stream_begins_with_the_next_txid",
    ),
    "a folder or bucket was moved": (
        "faults/test_moved_tables.py::test_moved_tables_go_on_wherever_they_are",
    ),
    "a column is new in a Delta table, or in files, that a spout reads": (
        "faults/test_changed_source.py::test_a_reader_takes_new_columns_when_it_starts",
        "faults/test_changed_files.py::test_a_new_column_is_added_at_the_next_start",
    ),
    "a field is new in the JSON values of Kafka records": (
        "spouts/test_kafka_values.py::test_a_field_that_the_schema_lacks_fails_the_batch_and_is_added",
    ),
    "a stream gets another spout of the same kind: another topic, another folder": (
        "faults/test_changed_streams.py::test_another_folder_under_the_same_name_is_read_once",
    ),
    "a stream gets a spout of another kind: files by Kafka": (
        "faults/test_changed_streams.py::test_a_spout_is_exchanged_and_taken_back",
    ),
    "a transform, a rule, a join": (
        "engine/test_changed_code.py::test_a_change_is_told_once_and_kept",
    ),
    "a table is new": (
        "faults/test_backfill.py::test_a_table_that_comes_late_holds_every_record_once",
        "operations/test_changes.py::test_new_and_dropped_tables_need_their_settings",
    ),
    "a table is gone": ("faults/test_backfill.py::test_a_dropped_table_is_put_back",),
}
"""Change, as the page names it -> the tests that show what becomes of it."""


def test_every_row_of_the_page_has_a_test() -> None:
    """The page and this index name the same changes, and each test exists."""
    (section,) = re.findall(r"^## What may change\n(.*?)^## ", PAGE.read_text(), re.M | re.S)
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert [row[2:].split(" | ")[0] for row in rows[1:]] == [*PROVEN_BY]
    for test in {one for tests in PROVEN_BY.values() for one in tests}:
        file, name = test.split("::")
        assert f"\ndef {name}(" in (TESTS / file).read_text(), test
