"""
Sharpness rises to 2/lr and stays there
=======================================

Full-batch gradient descent makes the loss sharper until the largest Hessian eigenvalue reaches 2/lr: the edge of
stability. Three lines in a plain training loop show it.
"""

import matplotlib.pyplot as plt
import torch

import spherometer as sm
from spherometer.zoo import build_model, load_data, rescale_inputs

digits = rescale_inputs(load_data("digits", num=1000), -1, 1)
model = build_model("digits-mlp", seed=0)
loss = sm.HalfSquaredError()
learning_rate = 0.1
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)

problem = sm.Problem(model, loss, digits.tensors)
steps, sharpness, start = [], [], None
for step in range(901):
    if step % 30 == 0:
        top = sm.eigenvalues(sm.Hessian(problem), rtol=1e-2, start=start, vectors=2)
        start = top.vectors
        steps.append(step)
        sharpness.append(float(top.value[0]))
    optimizer.zero_grad()
    loss(model(digits.inputs), digits.targets).backward()
    optimizer.step()

# %%
# The last value is within a few per cent of 2/lr = 20.

threshold = 2 / learning_rate
assert sharpness[0] < 0.7 * threshold
assert abs(sharpness[-1] / threshold - 1) < 0.1

figure, axis = plt.subplots(figsize=(6, 3.4))
axis.plot(steps, sharpness, color="#1f5a99")
axis.axhline(threshold, linestyle="--", color="#888888", label="2 / learning rate")
axis.set(xlabel="step", ylabel="sharpness", ylim=(0, None))
axis.legend(frameon=False)
figure.tight_layout()
