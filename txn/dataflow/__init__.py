"""The DAG that a user declares, and the DataFrames that it becomes."""
