"""The metadata service over a coordinator: definitions, keys, tenants, and where each queue's partitions lie.

`service` (what is asked) · `writes` (compare-and-set) · `store` (what a host holds of the coordinator, and its age) ·
`placement` (queue → cluster → shard) · `core` (keys, arcs, the log of changes: no I/O).
"""
