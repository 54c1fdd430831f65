"""A whole cluster on this machine, for development: the processes of `pushq dev-cluster`."""
