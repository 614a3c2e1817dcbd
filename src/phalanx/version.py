"""The version of phalanx; apart, so that nothing below needs the public face."""

__version__ = "1.0.0"
