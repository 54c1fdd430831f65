"""Settings: their types and defaults, where they come from, and which of them go together."""
