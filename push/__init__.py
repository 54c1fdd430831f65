"""Push: sends leased messages to consumers over WebSocket, SSE and long-poll, and takes their acknowledgements back."""
