"""Draw the pictures of the README again: python docs/make_images.py"""

from pathlib import Path

from spherometer.commands.edge import reach_edge
from spherometer.figures import draw_edge

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    edge = reach_edge(num_steps=2500, every=20, seed=0)
    columns = zip(*((row.step, row.sharpness, row.error, row.loss) for row in edge.rows), strict=True)
    draw_edge(IMAGES / "edge-of-stability.png", *columns, threshold=edge.threshold)


if __name__ == "__main__":
    main()
