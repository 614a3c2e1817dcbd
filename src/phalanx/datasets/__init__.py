"""Public data sets on the shared directory, in the forms in which libraries and upstream scripts look for them.

`catalog.json` names them with the SHA-256 of their content and where they come from. This package is sent to the head
and runs there as a job: only the standard library, Python 3.9.
"""
