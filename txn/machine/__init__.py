"""What the computer must have: Java, jars, Spark's settings, an allocator of memory."""
