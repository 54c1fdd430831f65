"""`python -m spark.transfer archive|replay`, and the same for `spark-submit`."""

from spark.transfer.main import main

if __name__ == "__main__":
    raise SystemExit(main())
