"""Rows that were set aside: listed, exported, corrected, replayed."""
