"""Files in a table's folder that are not in its log: write, count and identify them."""
