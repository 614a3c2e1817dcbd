"""Runs jobs inside a batch scheduler's allocation."""
