"""WebSocket sessions: frames in, frames out, what a session holds, and how it ends."""
