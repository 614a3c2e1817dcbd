"""What the user wants: phalanx.yaml, read and checked."""
