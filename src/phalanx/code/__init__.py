"""The user's code: which files are sent with a job, and how."""
