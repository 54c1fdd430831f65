"""What tests build their worlds from: a real server process, free ports, the machine's prerequisites."""
