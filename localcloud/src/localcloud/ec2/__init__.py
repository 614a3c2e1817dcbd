"""EC2 of the local cloud: instances, capacity, reservations, quotas, and the metadata service."""
