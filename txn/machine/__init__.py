"""The machine's equipment: Java, jars, Spark's settings, its addresses."""
