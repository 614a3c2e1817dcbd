"""What runs on every node for a job: the starter, and what it starts and ends."""
