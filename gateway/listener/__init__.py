"""The listener: TCP, TLS and the PROXY header, limits on connections, and HTTP up to the application."""
