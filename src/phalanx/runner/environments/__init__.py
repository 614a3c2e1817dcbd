"""Makes and lists the environments of jobs on the shared directory."""
