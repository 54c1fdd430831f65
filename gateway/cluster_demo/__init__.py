"""The cluster demo: a stream of numbered messages, a page that kills processes, and a tally of the messages."""
