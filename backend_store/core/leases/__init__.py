"""Leases and receipts: who holds which messages, until when, and what a receipt proves."""
