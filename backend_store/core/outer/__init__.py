"""The out-cluster manager: which cluster a queue is put in, and when clusters grow, shrink and exchange. No I/O.

It knows clusters, not hosts. `clusters` (what is known of each) · `choice` (queue → cluster) · `sizing` (when one grows
or shrinks) · `relief` (which queues a hot one gives) · `plans` (the file of `pushq cluster apply-plan`) · `documents`
(the rows that it writes).
"""
