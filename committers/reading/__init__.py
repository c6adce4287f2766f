"""State tables for readers without Spark: as SQL over their files, and as frames through DuckDB."""
