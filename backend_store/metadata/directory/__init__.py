"""The metadata service over a coordinator: definitions, keys, tenants, and where each queue's partitions are.

`service` (the operations) · `writes` (compare-and-set) · `store` (a host's copy of the records, and its age) ·
`placement` (queue → cluster → shard) · `core` (keys, arcs, the log of changes: no I/O).
"""
