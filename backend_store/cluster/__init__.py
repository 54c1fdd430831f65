"""What the processes of a cluster agree on, and how: a coordinator holds small records, sessions and their order.

`coordinator` (the contract) · `session` · `fencing` · `election` · `mirror` · drivers: `embedded`, in a folder of its
own `embedded_host`, and `etcd`.
"""
