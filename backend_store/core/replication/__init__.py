"""Replication of one partition's log, without I/O, clocks or randomness. `docs/explanation/replication.md` tells why.

How a shell drives a `Replica`, here for a publish and for whatever else may happen:

    entries = replica.append(drafts, …)          # a leader; the record says who that is
    replica.wait(entries[-1].end, ticket, …)     # confirmed when it is as safe as the partition's mode promises
    for effect in replica.take(): …              # store, send, read, submit: in this order
    mark   = replica.staged()                    # everything asked to be stored since the last commit, with
    commit = …, replica.log.stored()             # the log's row, as one durable transaction
    replica.committed(mark, …)                   # fetches the next, moves the high watermark, confirms
    for effect in replica.take(): …

Entries are opaque bytes behind a header; what they mean is the shell's, which applies those that `Apply` names and no
others. Its duties: one commit at a time; an entry is verified whenever it is read from the disk, and one that is broken
ends the process; a change is submitted as it is, compared with the record's version and its guards in one transaction
of the coordinator; a replica whose disk was replaced, restored or found damaged comes back with a new disk id.

The shell is `backend_store.shard`.
"""
