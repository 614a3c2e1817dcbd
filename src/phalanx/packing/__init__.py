"""Packs samples, single files with labels, into even shards that WebDataset and MXNet read.

Only the standard library, Python 3.9.
"""
