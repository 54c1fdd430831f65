"""The partition core: every decision a queue takes between publish and ack, without I/O, clocks or randomness.

How a shell drives it (`backend_store.node.partition` is that shell):

    decision = core.decide(commands, now_ms)     # reads committed state and the overlay; changes the overlay only
    rows     = rows of decision.records          # blind writes: absolute values, no read before them
    commit   = one durable transaction           # on failure the process exits, and the overlay with it
    core.committed(decision)                     # below the high watermark: apply, then answer the callers

Between two decisions the shell may `take` ready messages for a consumer. A lease lives in memory. The start of an
attempt is a record that rides along with the next commit and is on disk before the message can be handed out again.

On a single node (embedded), the high watermark is the durable end, `trim` is the end, and append and apply are one
transaction: decision records consume an offset and leave only their effects.
"""
