"""The coordinator over etcd 3.4 or newer, through its HTTP/JSON gateway: no gRPC, no threads.

`codec` (JSON and errors) · `lines` (the output of a watch) · `members` (requests, failover) · `watch` · `driver`.
"""
