"""Decisions of the gateway that need no I/O, clock or randomness: what may be served from a cache, and for how long."""
