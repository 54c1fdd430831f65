"""`pushq serve --gateways N`: several gateway processes in front of one storage process, and their parent."""
