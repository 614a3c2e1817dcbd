"""What of the user's directory goes over with a job, and how."""
