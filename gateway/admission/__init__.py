"""What is taken in: rate limits, overload, memory, quotas, and guards around dependencies."""
