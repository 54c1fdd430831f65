"""Encryption at rest: the cipher, the data keys of queues, the master keys that wrap them, and rotation."""
