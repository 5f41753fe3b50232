"""
How much does the Jacobian vary around a sample?
================================================

Paper A's theorems hold up to the local variation V of the Jacobian over balls, which the paper does not evaluate. Here
it is found from below by ascent and certified from above, for two activations, over the radius of the balls.
"""

import matplotlib.pyplot as plt

from spherometer.theory import jacobian_variation, lipschitz_bounds
from spherometer.zoo import build_model, load_data

inputs = load_data("digits").inputs[:8]
radii = [0.01, 0.03, 0.1, 0.3, 1.0]

figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), sharey=True)
for axis, activation in zip(axes, ("relu", "tanh"), strict=True):
    model = build_model(
        "fcn3-mnist", num_classes=10, input_shape=tuple(inputs.shape[1:]), activation=activation, width=30, seed=0
    )
    found = [jacobian_variation(model, inputs, radius, num_steps=5) for radius in radii]
    assert all(bool((one.lower <= one.upper).all()) for one in found)
    axis.loglog(radii, [float(one.lower.mean()) for one in found], "k.", label="met")
    axis.loglog(radii, [float(one.upper.mean()) for one in found], "-", label="certified")
    if found[0].smooth is not None:
        axis.loglog(radii, [float(one.smooth.mean()) for one in found], "--", label="2δ Lip(J)")
    axis.axhline(float(found[0].jacobians.mean()), color="#999999", linewidth=0.8, label="‖J‖ at samples")
    axis.set(title=activation, xlabel="radius δ")
axes[0].set_ylabel("V, mean over samples")
axes[1].legend(fontsize=8)
figure.tight_layout()

# %%
# The Lipschitz constant of the whole network, from both sides.

print(lipschitz_bounds(model, inputs, radius=0.1))
print("product of layer norms:", round(lipschitz_bounds(model, inputs).product, 3))
