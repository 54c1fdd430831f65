"""The decisions of alerts, without clocks, files and sockets."""
