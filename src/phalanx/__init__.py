"""phalanx: one YAML file becomes a distributed deep-learning cluster, and jobs run on it."""

__version__ = "0.1.0"
