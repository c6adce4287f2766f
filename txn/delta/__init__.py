"""The Delta log and the folder of a table, as anybody reads them. Knows no topology."""
