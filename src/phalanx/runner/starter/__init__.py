"""The part of the runner on every node: the starter, and the processes that it starts and ends."""
