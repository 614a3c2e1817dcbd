"""The files of a job: its state, its output, its code, and the stream in which files are copied."""
