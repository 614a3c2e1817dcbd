"""Measures a cluster's network from its nodes. `phalanx check net` sends this package as a job's code."""
