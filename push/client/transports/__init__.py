"""The transports that carry frames between the core and the server: a WebSocket, or HTTP that behaves like one."""
