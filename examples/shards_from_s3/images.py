"""Draw images of two classes, filled circles and squares in noise: `python images.py DIRECTORY [NUMBER]`."""

import sys
from pathlib import Path

import numpy as np

SIDE = 32


def draw(kind: str, seed: int) -> np.ndarray:
    """Return one image: a bright shape of some size at some place, in noise."""
    random = np.random.default_rng(seed)
    radius = random.integers(5, 10)
    x, y = random.integers(radius, SIDE - radius, 2)
    across, down = np.abs(np.arange(SIDE) - x), np.abs(np.arange(SIDE) - y)[:, None]
    inside = across**2 + down**2 < radius**2 if kind == "circle" else np.maximum(across, down) < 0.89 * radius
    return np.clip(random.normal(60, 30, (SIDE, SIDE)) + 120 * inside, 0, 255).astype(np.uint8)


def main(directory: Path, number: int) -> None:
    for label, kind in enumerate(("circle", "square")):
        (directory / kind).mkdir(parents=True, exist_ok=True)
        for count in range(number // 2):
            np.save(directory / kind / f"{count:05}.npy", draw(kind, 2 * count + label))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4000)
