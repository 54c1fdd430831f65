"""Messages on their way to another queue's log: dead letters, deleted queues, outboxes."""
