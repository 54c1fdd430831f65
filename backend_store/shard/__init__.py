"""Shards: each a replicated log that holds a whole `Node`, on several backends. `docs/explanation/replication.md`."""
