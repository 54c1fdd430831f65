"""The benchmark of our own server: `make bench`. The load comes from one process on its own core."""
