"""Coordination within a cluster: a coordinator stores small records and sessions, and orders their changes.

`coordinator` (the contract) · `session` · `fencing` · `election` · `mirror` · drivers: `embedded`, in a folder of its
own `embedded_host`, and `etcd`.
"""
