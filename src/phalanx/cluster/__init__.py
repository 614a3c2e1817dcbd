"""The life of a cluster: its record on this machine, its stack, and how it is brought up and taken down."""
