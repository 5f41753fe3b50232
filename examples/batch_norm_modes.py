"""
Batch norm: train and eval mode are different measurements
==========================================================

The same weights, the same data: the curvature depends on whether batch norm uses its running statistics or those of
the batch. Neither leaves a trace in the model.
"""

import torch
from torch import nn

import spherometer as sm
from spherometer.zoo import load_data

digits = load_data("digits", num=256)
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(digits.inputs), digits.targets).backward()
    optimizer.step()

before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
found = {}
for mode in ("eval", "train"):
    problem = sm.Problem(model, nn.CrossEntropyLoss(), digits.tensors, batchnorm=mode, dtype=torch.float64)
    found[mode] = sm.measure(problem, ["loss", "sharpness"])
    print(found[mode])

# %%
# Both are right answers to different questions; the table says which was asked.

assert found["eval"]["sharpness"].value != found["train"]["sharpness"].value
assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
