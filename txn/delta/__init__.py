"""The Delta log of a table, as anybody reads it. Knows no topology."""
