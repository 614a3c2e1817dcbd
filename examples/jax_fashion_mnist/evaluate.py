"""Evaluate train.py's weights on the 10,000 test images, which are not used in training."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from data import DEFAULT_DIRECTORY, load
from model import scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, help="train.py's weights.npz")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIRECTORY, help="the four idx.gz files (%(default)s)")
    parser.add_argument("--at-least", type=float, default=0.8, help="exit with 1 below this (%(default)s)")
    arguments = parser.parse_args()

    images, labels = load(arguments.data, "t10k")
    with np.load(arguments.weights) as weights:
        accuracy = float(np.mean(scores(dict(weights), images).argmax(axis=1) == labels))
    print(f"test accuracy {accuracy:.4f} on {len(labels):,} images (required: {arguments.at_least})")
    raise SystemExit(0 if accuracy >= arguments.at_least else 1)


if __name__ == "__main__":
    main()
