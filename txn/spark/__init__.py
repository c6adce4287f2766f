"""Helpers around Spark: sessions, row counts of a job, causes of failures, submitted settings."""
