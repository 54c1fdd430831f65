"""Independent hosts: each holder of a queue owns a lane of it, any host takes a send, any host hands messages out.

A *lane* is a partition with an owner it prefers. Nobody is elected: while its host lives, the lane is there; when the
host's session has lapsed, another holder *adopts* the lane, fenced by an epoch, and gives it back by a handover. The
files in the order of a message's path, none with I/O, clocks or randomness:

    table       which host owns which lane in which epoch, and which lane is home to which keys
    adoption    the changes of the table: adopting, handing back, who is in sync; each a compare-and-set
    routing     what a host does with a send: append, forward once, say `moved`, refuse
    stamping    the times along a lane's log, which only rise, whoever owns it
    slot_log    the lane's slots in a log whose end is committed later than it is written
    lending     the owner's side of a bulk lease, and the only word on who may ack
    agent       the other side: a host that hands out what it was lent
    merge       one order of time over all lanes
    refusals    what a queue cannot be yet where processes have lanes

What a shell owes them: an answer that confirms something waits until the log is committed up to what it rests on; a
new owner appends `EpochBegan`, and confirms and lends nothing before that is committed. The lane's log is the
replication's matter: what was committed stays, what was not may vanish or be committed later, and a deposed owner
commits nothing. `tests/simulation/lanes` holds all of it together.

Processes use `table`, `routing` and `refusals` (`backend_store.hosts`): their lanes are shards, whose own rules adopt
them and lend their messages.
"""
