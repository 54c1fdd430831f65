"""Spark jobs over usage files; none are shipped in this version."""
