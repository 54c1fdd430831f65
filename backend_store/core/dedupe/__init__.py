"""Ids of messages: which are known, and how places and numbered messages are named."""
