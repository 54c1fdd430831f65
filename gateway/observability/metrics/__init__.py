"""What `/metrics` of every role shows, one module for each subject."""
