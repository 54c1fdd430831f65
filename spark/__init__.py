"""Spark over usage files: their schemas, the jobs that roll up, audit and plan, and the session they run in."""
