"""The figures that phalanx promises, one module per figure: `python -m benchmarks` or `python -m benchmarks.up`."""
