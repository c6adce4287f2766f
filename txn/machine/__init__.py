"""What a machine needs: Java, jars, Spark's settings, a memory allocator."""
