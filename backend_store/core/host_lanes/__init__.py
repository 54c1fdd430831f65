"""Independent hosts: each holder of a queue owns a lane of it, any host accepts a publish, any host delivers messages.

A *lane* is a partition with a preferred owner. There is no election: while its host lives, the lane is there; when the
host's session has lapsed, another holder *adopts* the lane, fenced by an epoch, and gives it back by a handover. The
modules in the order of a message's path, none with I/O, clocks or randomness:

    table        which host owns which lane in which epoch, and which lane is home to which keys
    adoption     the changes of the table: adoption, handover, in-sync set; each a compare-and-set
    routing      what a host does with a publish: append, forward once, answer `moved`, refuse
    stamping     the times along a lane's log, which only rise, whatever host owns it
    slot_log     the lane's slots in a log whose end is committed later than it is written
    lending      the owner's side of a bulk lease, and the only authority on acks
    agent        the other side: a host that delivers what it was lent
    merge        one order of time over all lanes
    single_lane  which queues cannot have a lane at each host

Duties of the shell: an answer that confirms something waits until the log is committed up to the records it depends on;
a new owner appends `EpochBegan`, and confirms and lends nothing before that is committed. Replication of the lane's log
guarantees that committed entries stay, that others may vanish or be committed later, and that a deposed owner commits
nothing. `tests/simulation/lanes` tests all of it together.

Processes use `table`, `routing` and `single_lane` (`backend_store.hosts`): their lanes are shards, whose own rules
adopt them and lend their messages.
"""
