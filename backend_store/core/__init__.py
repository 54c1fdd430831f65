"""The partition core: what a queue decides, without I/O, clocks or randomness.

How a shell drives it (`backend_store.node.partition` is that shell):

    decision = core.decide(commands, now_ms)     # reads committed state and the overlay; changes the overlay only
    rows     = rows of decision.records          # blind: absolute values, nothing is read
    commit   = one durable transaction           # on failure the process ends; the overlay dies with it
    core.committed(decision)                     # below the high watermark: apply, then answer the callers

Between two decisions the shell may `take` ready messages for a consumer. A lease lives in memory; that an attempt was
started is a record that rides along with the next commit and is on disk before the message can be handed out again.

When alone (embedded), the high watermark is the durable end, `trim` is the end, and append and apply are one
transaction: decision records take their offset and leave only their effects.
"""
