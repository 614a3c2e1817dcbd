"""Evaluate train.py's latest checkpoint on the 10,000 test images, which are not used in training."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from data import DEFAULT_DIRECTORY, load
from model import Network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="directory of train.py's checkpoints")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIRECTORY, help="the four idx.gz files (%(default)s)")
    parser.add_argument("--at-least", type=float, default=0.8, help="exit with 1 below this (%(default)s)")
    arguments = parser.parse_args()

    newest = arguments.directory / (arguments.directory / "latest").read_text().strip()
    state = torch.load(newest / "mp_rank_00_model_states.pt", map_location="cpu", weights_only=False)
    network = Network().eval()
    network.load_state_dict(state["module"])
    images, labels = load(arguments.data, "t10k").tensors
    with torch.inference_mode():
        predicted = torch.cat([network(batch).argmax(dim=1) for batch in images.split(1_000)])
    accuracy = float((predicted == labels).double().mean())
    print(f"{newest}: test accuracy {accuracy:.4f} on 10,000 images (required: {arguments.at_least})")
    raise SystemExit(0 if accuracy >= arguments.at_least else 1)


if __name__ == "__main__":
    main()
