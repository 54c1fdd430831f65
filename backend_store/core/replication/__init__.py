"""Replication of one partition's log, without I/O, clocks or randomness. `docs/explanation/replication.md` has reasons.

How a shell drives a `Replica`, for a publish and for any other event:

    entries = replica.append(drafts, …)          # on the leader, which the record names
    replica.wait(entries[-1].end, ticket, …)     # confirmed when it is as safe as the partition's mode promises
    for effect in replica.take(): …              # store, send, read, submit: in this order
    mark   = replica.staged()                    # everything to be stored since the last commit, with
    commit = …, replica.log.stored()             # the log's row, as one durable transaction
    replica.committed(mark, …)                   # fetches the next, moves the high watermark, confirms
    for effect in replica.take(): …

Entries are opaque bytes behind a header. Only the shell interprets them, and it applies those that `Apply` names and no
others. Duties of the shell: it runs one commit at a time; it verifies an entry whenever it reads one from disk, and a
damaged one ends the process; it submits a change as it is, and the coordinator compares the record's version and the
guards in one transaction; a replica whose disk was replaced, restored or found damaged returns with a new disk id.

The shell is `backend_store.shard`.
"""
