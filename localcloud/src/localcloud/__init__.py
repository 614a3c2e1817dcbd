"""The AWS stand-in on this machine: a sealed sub-product that imports nothing else of phalanx."""
