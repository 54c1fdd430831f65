"""Jobs: what each reads and writes, and its arguments. `pushq usage run JOB` and `spark-submit` both run them."""
