"""The front door: HTTP, signatures, limits, and what is served of each service, on top of moto."""
