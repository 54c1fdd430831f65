"""The store's shell: group commit, recovery, timers and disk space around the cores that decide for each partition."""
