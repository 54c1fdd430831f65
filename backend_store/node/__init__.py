"""The node's shell around the partition core: group commit, recovery, time, disk space."""
