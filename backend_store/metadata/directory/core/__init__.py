"""What a directory decides without I/O: how records are called, which host keeps what, and what changed when."""
