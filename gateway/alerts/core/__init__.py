"""What rules decide, without clocks, files and sockets."""
