"""The local cloud's process: start and stop, its own endpoints, faults, and what this machine allows."""
