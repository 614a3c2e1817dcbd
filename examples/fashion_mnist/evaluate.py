"""Evaluate a checkpoint of train.py on the 10,000 test images, which are not used in training."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from data import DEFAULT_DIRECTORY, load
from model import Network


def accuracy_on_test(checkpoint: Path, data: Path) -> float:
    """Return the share of test images whose highest score is that of their class."""
    network = Network().eval()
    network.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
    images, labels = load(data, "t10k").tensors
    with torch.inference_mode():
        predicted = torch.cat([network(batch).argmax(dim=1) for batch in images.split(1_000)])
    return float((predicted == labels).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="train.py's checkpoint.pt")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIRECTORY, help="the four idx.gz files (%(default)s)")
    parser.add_argument("--at-least", type=float, default=0.85, help="exit with 1 below this (%(default)s)")
    arguments = parser.parse_args()

    accuracy = accuracy_on_test(arguments.checkpoint, arguments.data)
    print(f"test accuracy {accuracy:.4f} on 10,000 images (required: {arguments.at_least})")
    raise SystemExit(0 if accuracy >= arguments.at_least else 1)


if __name__ == "__main__":
    main()
