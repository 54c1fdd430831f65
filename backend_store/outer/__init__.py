"""The out-cluster manager's process: `manager` hears the clusters and writes down what the core decides."""
