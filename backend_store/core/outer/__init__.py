"""The out-cluster manager: chooses the cluster of a queue, resizes clusters, and moves queues between them. No I/O.

It knows clusters, not hosts. `clusters` (the state of each) · `choice` (queue → cluster) · `sizing` (when one grows or
shrinks) · `relief` (which queues leave a hot cluster) · `merging` (which shared queues are merged) · `plans` (the file
of `pushq cluster apply-plan`) · `moving` (which moves of a plan begin) · `gathered` (a cluster's report from those of
its shards) · `managing` (one step of the manager) · `documents` (the row of a cluster) · `records` (its other rows) ·
`sentences` (texts of events).
"""
