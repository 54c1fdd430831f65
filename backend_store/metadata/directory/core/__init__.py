"""The decisions of a directory, without I/O: keys of records, which host keeps what, and what changed when."""
