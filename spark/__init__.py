"""Spark over usage files: their types, jobs that roll up, audit and plan, and the session they run in."""
