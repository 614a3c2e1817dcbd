"""What runs on the head for a job: its attempts, and the lines to its nodes."""
