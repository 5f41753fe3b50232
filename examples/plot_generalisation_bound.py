"""
The generalisation bound that paper A did not evaluate
======================================================

Theorem 6.1 bounds the error on unseen samples by δ(‖f*‖ + max(‖J‖ + V)): the covering radius of the samples, the
Lipschitz constant of the target, and how steep the model is at the samples and on balls around them. On an interval
all of it is known. Both sides over N, for three ways to train.
"""

import math

import matplotlib.pyplot as plt
import torch

import spherometer as sm
from spherometer.theory import Cover, Cube, Theorems
from spherometer.zoo import build_model, uniform_cube

NUM_STEPS, NUMBERS = 300, (16, 40, 100, 250)
METHODS = ("Adam", "weight decay", "SAM")


def target(inputs):
    """Lipschitz constant π."""
    return (math.pi * inputs.sum(1)).sin()


def train(method, data):
    """A tanh network with two hidden layers, all samples in each step."""
    model = build_model("digits-mlp", num_classes=1, input_shape=(1,), width=16, seed=0)
    options = {"lr": 0.01, "weight_decay": 1e-3 if method == "weight decay" else 0.0}
    rho = 0.02 if method == "SAM" else 0.0  # 0 is the base optimiser
    optimizer = sm.optim.SAM(model.parameters(), torch.optim.Adam, rho=rho, model=model, **options)
    inputs, targets = data.tensors
    loss_function = sm.HalfSquaredError()

    def closure():
        optimizer.zero_grad()
        loss = loss_function(model(inputs), targets)
        loss.backward()
        return loss

    for step in range(NUM_STEPS):
        optimizer.param_groups[0]["lr"] = 0.005 * (1 + math.cos(math.pi * step / NUM_STEPS))
        optimizer.step(closure)
    return model


held_out = uniform_cube(1000, 1, seed=1, target=target)
found = {}
for method in METHODS:
    for num in NUMBERS:
        data = uniform_cube(num, 1, seed=0, target=target)
        problem = sm.Problem(train(method, data), sm.HalfSquaredError(), data.tensors, dtype=torch.float64)
        cover = Cover.of_support(Cube(1), num, epsilon=0.1)
        theorems = Theorems(problem, cover, held_out.tensors, target_lipschitz=math.pi)
        found[method, num] = theorems.generalisation().corrected

figure, axis = plt.subplots(figsize=(6, 3.8))
for colour, method in zip(("C0", "C1", "C2"), METHODS, strict=True):
    bounds = [found[method, num] for num in NUMBERS]
    axis.loglog(NUMBERS, [bound.right for bound in bounds], "-", color=colour, label=f"{method}: bound, certified")
    axis.loglog(NUMBERS, [bound.seen for bound in bounds], "--", color=colour, label="bound, V as it was met")
    axis.loglog(NUMBERS, [bound.left for bound in bounds], "o", color=colour, label="measured error")
axis.set(xlabel="samples N", ylabel="E‖f − f*‖ and its bound")
axis.set_xticks(NUMBERS, NUMBERS)
axis.minorticks_off()
axis.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
figure.tight_layout()

print(f"{'N':>4} " + "".join(f"{method:>24}" for method in METHODS))
for num in NUMBERS:
    sides = [found[method, num] for method in METHODS]
    print(f"{num:>4} " + "".join(f"{bound.left:>14.2g} <= {bound.right:<6.2g}" for bound in sides))

assert all(bound.proved and bound.holds for bound in found.values())

# %%
# What stands behind one of these points, hypothesis by hypothesis.

print(found["Adam", 250])
