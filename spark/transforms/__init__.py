"""The computations of jobs: DataFrames in, DataFrames out; no files, no clock, nothing collected."""
