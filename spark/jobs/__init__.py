"""The jobs: inputs, outputs and arguments of each. Run by `pushq usage run JOB` or `spark-submit`."""
