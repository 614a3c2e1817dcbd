"""One cluster over its life: its record on this machine, its stack, how it is brought up and taken down."""
