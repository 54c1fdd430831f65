"""The three ways a message reaches a consumer: WebSocket, SSE, long-poll."""
