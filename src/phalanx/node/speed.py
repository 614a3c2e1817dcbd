"""The speed of the local cloud's weather, which divides AWS's delays, and here the waits that are meant for them."""

import os

SPEED = float(os.environ.get("PHALANX_SPEED", "1"))
"""1 on AWS: only the local cloud sets the variable."""
