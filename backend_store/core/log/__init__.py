"""The log of a partition as values: blocks, chunks, records, cursors."""
