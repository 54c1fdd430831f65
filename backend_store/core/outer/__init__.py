"""The out-cluster manager: which cluster a queue is put in, and when clusters grow, shrink and exchange. No I/O.

It knows clusters, not hosts. `clusters` (what is known of each) · `choice` (queue → cluster) · `sizing` (when one grows
or shrinks) · `relief` (which queues a hot one gives) · `plans` (the file of `pushq cluster apply-plan`) ·
`moving` (which moves of a plan begin) · `gathered` (a cluster's report from what its shards say) · `managing` (one look
of the manager) · `documents` (the row of a cluster) · `records` (its other rows).
"""
