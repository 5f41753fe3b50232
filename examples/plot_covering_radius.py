"""
How well do samples cover a cube?
=================================

Paper A proves a radius at which N samples cover the cube with probability 1 − ε. The printed formula, the corrected
one, the inequality of the proof solved as it is, and what samples really do.
"""

import matplotlib.pyplot as plt
import torch

from spherometer.theory import Cube, covering_radius, levina_bickel, two_nearest_neighbours
from spherometer.zoo import load_data

cube, epsilon = Cube(2), 0.1
numbers = [10, 20, 40, 80, 160, 320, 640, 1280]
radii = [cube.radii(num, epsilon) for num in numbers]

generator = torch.Generator().manual_seed(0)
side = torch.linspace(0, 1, 60)
grid = torch.cartesian_prod(side, side)
measured = []
for num in numbers:
    draws = [covering_radius(torch.rand(num, 2, generator=generator), grid).value for _ in range(50)]
    measured.append(sorted(draws)[44])  # 90 % of the draws cover at this radius

figure, axis = plt.subplots(figsize=(6, 3.6))
for form, style in {"printed": "--", "corrected": "-", "solved": "-."}.items():
    axis.loglog(numbers, [getattr(radius, form).value for radius in radii], style, label=form)
axis.loglog(numbers, measured, "k.", label="measured, 90 % quantile")
axis.axhline(cube.diameter, color="#999999", linewidth=0.8)
axis.set(xlabel="samples N", ylabel="covering radius")
axis.legend()
figure.tight_layout()

assert all(
    found <= radius.solved.value <= radius.corrected.value for found, radius in zip(measured, radii, strict=True)
)

# %%
# Real data: the support is unknown, but its dimension can be estimated, and held-out samples can probe the covering.

pixels = load_data("digits").inputs
print(f"dimension by two neighbours: {two_nearest_neighbours(pixels)}")
print(f"dimension by ten neighbours: {levina_bickel(pixels)}")
order = torch.randperm(len(pixels), generator=generator)
print(covering_radius(pixels[order[:900]], pixels[order[900:]]))
print(f"to cover a cube of dimension 8 at radius 1/2: {Cube(8).samples_needed(0.5, epsilon):.2g} samples")
