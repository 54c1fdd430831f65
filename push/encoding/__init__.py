"""Messages and answers as bytes of frames: JSON, MessagePack and server-sent events."""
