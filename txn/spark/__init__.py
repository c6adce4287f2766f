"""What we know of Spark, whoever asks: sessions, counts of a job, why it failed, who submitted."""
