"""The demo of a cluster: a stream of numbered messages, a page that kills parts, and what becomes of the messages."""
