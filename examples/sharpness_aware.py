"""
SAM in a plain loop: flatter than SGD
=====================================

The same network, data and order of batches, once with SGD and once with SAM around it. The sharpness is measured
before and after, with error bars.
"""

import torch
from torch import nn

import spherometer as sm
from spherometer.zoo import build_model, load_data

digits = load_data("digits", num=512)
criterion = nn.CrossEntropyLoss()


def sharpness(model):
    problem = sm.Problem(model, criterion, digits.tensors)
    return sm.eigenvalues(sm.Hessian(problem), rtol=1e-2)


def train(optimizer, model, num_epochs=20):
    order = torch.Generator().manual_seed(0)
    for _ in range(num_epochs):
        for chosen in torch.randperm(512, generator=order).split(64):
            inputs, targets = digits.inputs[chosen], digits.targets[chosen]

            def closure(inputs=inputs, targets=targets):
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                loss.backward()
                return loss

            optimizer.step(closure)


# %%
# Any base optimiser goes inside; `model=` keeps batch-norm statistics to one update per step.

model = build_model("digits-mlp", seed=0)
print(f"before       {sharpness(model)}")
train(torch.optim.SGD(model.parameters(), lr=0.1), model)
plain = sharpness(model)
print(f"after SGD    {plain}")

model = build_model("digits-mlp", seed=0)
train(sm.optim.SAM(model.parameters(), torch.optim.SGD, rho=0.3, model=model, lr=0.1), model)
aware = sharpness(model)
print(f"after SAM    {aware}")

# %%
# The difference is beyond the error bars.

assert float(aware.value[0] + aware.error[0]) < float(plain.value[0] - plain.error[0])
