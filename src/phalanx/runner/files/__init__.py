"""The files of a job: its state, its output, its code, and what is carried to and fro."""
