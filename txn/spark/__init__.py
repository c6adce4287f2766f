"""Helpers around Spark: sessions, names, row counts of a job, causes of failures, submissions."""
