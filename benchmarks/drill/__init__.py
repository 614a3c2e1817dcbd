"""Drills: seeded faults in the lives of local clusters, which must end up ready or fail for a true reason."""
