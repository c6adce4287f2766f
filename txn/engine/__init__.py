"""The shell: carries out the coordinator's orders on Spark, spouts and tables."""
