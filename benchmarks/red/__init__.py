"""Remove each defence from a copy of the code, and check that the attack then succeeds: `python -m benchmarks.red`."""
