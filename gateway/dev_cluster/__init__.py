"""`pushq dev-cluster`: whole clusters on this machine, for development."""
