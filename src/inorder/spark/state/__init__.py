"""Rules of ordered processing, without Spark, files and time: who may be handled, what is kept."""
