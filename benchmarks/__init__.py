"""What phalanx promises in numbers, one module per figure: `python -m benchmarks` or `python -m benchmarks.up`."""
