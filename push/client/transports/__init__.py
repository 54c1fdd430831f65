"""What carries frames between the core and the server: a WebSocket, or HTTP made to look like one."""
