"""Starts and finds the local cloud on this machine, and makes the calls of AWS's API to it."""
