"""Files that lie in a table's folder and not in its log: written, counted, told apart."""
