"""The coordinator over etcd 3.4 or newer, through its HTTP/JSON gateway: no gRPC, no threads.

`codec` (JSON and errors) · `lines` (what a watch says) · `members` (requests, failover) · `watch` · `driver`.
"""
