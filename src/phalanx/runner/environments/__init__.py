"""The environments of jobs on the shared directory."""
