"""Series: how the numbers of queues and of the process went in the last day, kept in rings of fixed size."""
