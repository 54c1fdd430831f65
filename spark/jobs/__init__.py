"""Jobs: what each reads, what it writes, and its arguments. `pushq usage run JOB` and `spark-submit` both come here."""
