"""For Spark over usage files: their types. No jobs are shipped in this version."""
