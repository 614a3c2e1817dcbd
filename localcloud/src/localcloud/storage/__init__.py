"""Shared directories, buckets, Lustre and tables of the local cloud."""
