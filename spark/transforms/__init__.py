"""The computations of the jobs, from DataFrames to DataFrames: no files, no clock, nothing collected."""
