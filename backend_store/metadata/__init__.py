"""The metadata service: queue definitions, tenants and keys. Embedded, it is a cache over rows of the node's store."""
