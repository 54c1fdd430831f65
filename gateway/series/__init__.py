"""Series: samples of queues and of the process over the last day, in rings of fixed size."""
