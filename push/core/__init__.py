"""What a session decides, without sockets and clocks: credit, replies that share a frame, sessions that may come
back.
"""
