"""Copies objects between S3 and a directory: on this machine, and on the head as a job's code.

Only the standard library, Python 3.9: a job that stages data installs nothing. `benchmarks/s3.py` compares it with
the libraries that could have carried it.
"""
