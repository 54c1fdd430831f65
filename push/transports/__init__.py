"""The three transports to a consumer: WebSocket, SSE, long-poll."""
