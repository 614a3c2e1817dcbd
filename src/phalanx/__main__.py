"""`python -m phalanx` is the `phalanx` program."""

from phalanx.cli import main

if __name__ == "__main__":
    main()
