"""The benchmark of our own server: `python -m tests.bench`, or `make bench`. Load comes from one process, on its own core."""
