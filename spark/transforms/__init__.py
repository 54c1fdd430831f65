"""What jobs compute: DataFrames in, DataFrames out; no files, no clock, nothing collected."""
