"""Jobs inside a batch scheduler's allocation."""
