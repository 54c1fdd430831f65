"""The out-cluster manager's process: `manager` collects the clusters' reports and writes down what the core decides."""
