"""The in-cluster manager's decision: which nodes keep each shard's copies, and which leads. No I/O.

`planning` (the plan of one round) · `values` (nodes, shards, moves) · `limits`.
"""
