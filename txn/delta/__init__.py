"""Read and maintain the Delta log of a table, independently of any topology."""
