"""Independent hosts as processes: the table that each of them has, and the door at which it takes sends."""
