"""What runs the tests: the gate's two tiers, the search beyond them, and the tools to hunt a test that wavers."""
