"""Who a caller is, and what they may do: API keys, JWTs and their issuers, tickets, authorization."""
