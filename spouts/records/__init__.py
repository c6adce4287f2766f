"""How a record is cut out of its source, and what becomes of one that does not parse."""
