"""Take each defence out of a copy of the code, and see the attack that it stops succeed: `python -m benchmarks.red`."""
