"""
The whole spectrum, with a band
===============================

Stochastic Lanczos quadrature gives the density of all eigenvalues from a few dozen products; several probes give a
band. Its moments are the trace and the squared Frobenius norm, each with a standard error.
"""

import matplotlib.pyplot as plt
import torch

import spherometer as sm
from spherometer.zoo import build_model, load_data

digits = load_data("digits", num=500)
model = build_model("digits-mlp", activation="relu", seed=0)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(60):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(digits.inputs), digits.targets).backward()
    optimizer.step()

hessian = sm.Hessian(sm.Problem(model, torch.nn.CrossEntropyLoss(), digits.tensors, dtype=torch.float64))
density = sm.spectral_density(hessian, num_vectors=6, num_steps=60)
grid = torch.linspace(float(density.nodes.min()), float(density.nodes.max()), 400, dtype=torch.float64)
curve = density.on(grid)

figure, axis = plt.subplots(figsize=(6, 3.4))
axis.semilogy(grid, curve.value.clamp_min(1e-8), color="#1f5a99")
axis.fill_between(
    grid, (curve.value - curve.error).clamp_min(1e-8), (curve.value + curve.error).clamp_min(1e-8), alpha=0.3
)
axis.set(xlabel="eigenvalue", ylabel="density", ylim=(1e-6, None))
figure.tight_layout()

# %%
# The first moment is the trace. A ReLU network has an exact one (identity T12), so the error bar can be checked.

moment, exact = density.moment(1), sm.trace(hessian)
assert exact.source == "exact"
assert abs(float(moment.value) - float(exact.value)) < 5 * float(moment.error)
print(f"trace from the density: {moment}\nexact trace:            {exact}")
