"""The version of phalanx; apart, so that nothing below needs the public face."""

__version__ = "0.1.0"
