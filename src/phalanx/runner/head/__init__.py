"""The part of the runner on the head: a job's attempts, and the lines to its nodes."""
