"""
What Adam sees: preconditioned sharpness
========================================

An adaptive optimiser is stable while the largest eigenvalue of D^(-1/2) H D^(-1/2) is below its own threshold; the
plain sharpness may be far above 2/lr. Both are read from the optimiser's state.
"""

import torch

import spherometer as sm
from spherometer.zoo import build_model, load_data

digits = load_data("digits", num=400)
model = build_model("digits-mlp", seed=0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(100):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(digits.inputs), digits.targets).backward()
    optimizer.step()

problem = sm.Problem(model, torch.nn.CrossEntropyLoss(), digits.tensors)
plain = sm.eigenvalues(sm.Hessian(problem))
preconditioned = sm.eigenvalues(sm.Preconditioned(sm.Hessian(problem), sm.preconditioner(problem, optimizer)))
threshold = sm.stability_threshold_of(optimizer)
print(f"sharpness                {plain}")
print(f"preconditioned sharpness {preconditioned}")
print(f"threshold                {threshold:g}")

assert abs(threshold - 2 * (1 + 0.9) / ((1 - 0.9) * 1e-3)) < 1e-6 * threshold
assert float(preconditioned.value[0]) > float(plain.value[0])
