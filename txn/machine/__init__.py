"""The machine's equipment: Java, jars, Spark's settings, a memory allocator, its addresses."""
