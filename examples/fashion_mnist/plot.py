"""Plot the loss and accuracy curves of metrics.csv."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read_columns(path: Path) -> dict[str, list[float]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def draw(columns: dict[str, list[float]], picture: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for plot, quantity in zip(axes, ("loss", "accuracy"), strict=True):
        plot.plot(columns["epoch"], columns[f"main/{quantity}"], "o-", label="training")
        plot.plot(columns["epoch"], columns[f"validation/main/{quantity}"], "s--", label="validation")
        plot.set(xlabel="epoch", ylabel=quantity, xticks=columns["epoch"])
        plot.grid(alpha=0.3)
        plot.legend()
    figure.savefig(picture, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("metrics", type=Path, help="train.py's metrics.csv")
    parser.add_argument("picture", type=Path, help="the PNG file to write")
    arguments = parser.parse_args()
    draw(read_columns(arguments.metrics), arguments.picture)
    print(f"wrote {arguments.picture}")


if __name__ == "__main__":
    main()
