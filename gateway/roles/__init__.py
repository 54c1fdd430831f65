"""The roles beside the gateway, each a process: backend, metadata service, manager of clusters."""
