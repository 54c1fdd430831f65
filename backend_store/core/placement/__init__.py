"""Replica placement by the in-cluster manager: which nodes have each shard's copies, and which one leads. No I/O.

`planning` (the plan of one round) · `values` (nodes, shards, moves) · `limits`.
"""
