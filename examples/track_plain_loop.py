"""
Watch the geometry in your own loop
===================================

Two lines in a plain training loop: the sharpness with its error bar, the learning rate's threshold beside it, and the
events on the way, kept in a run folder.
"""

import tempfile

import torch

import spherometer as sm
from spherometer.zoo import build_model, load_data, rescale_inputs

digits = rescale_inputs(load_data("digits", num=500), -1, 1)
model = build_model("digits-mlp", seed=0)
loss_function = sm.HalfSquaredError()
optimizer = torch.optim.SGD(model.parameters(), lr=0.12)
problem = sm.Problem(model, loss_function, digits.tensors)

folder = tempfile.mkdtemp()
with sm.Tracker(problem, ["sharpness", "gradient_norm"], every=20, run=folder, trajectory=20) as tracker:
    for _ in range(500):
        optimizer.zero_grad()
        loss = loss_function(model(digits.inputs), digits.targets)
        loss.backward()
        optimizer.step()
        tracker.step(optimizer, loss.detach())

for event in tracker.events:
    print(f"step {event.step:4d}  {event.name}: {event.text}")

# %%
# One call reads the run back as a table.

table = sm.read_runs(folder, names=["sharpness", "stability_ratio"])
print(table.select("step", "name", "value", "error", "products").tail(6))
assert "edge of stability" in [event.name for event in tracker.events]
assert abs(tracker.series("stability_ratio")[-1].value - 1) < 0.15
