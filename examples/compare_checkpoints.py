"""
Which of two checkpoints is flatter?
====================================

Two networks trained with different learning rates, one table each; the 95 % interval over data says whether the
difference would survive other samples of the same data.
"""

import torch

import spherometer as sm
from spherometer.zoo import build_model, load_data

digits = load_data("digits", num=600)


def trained(learning_rate: float) -> torch.nn.Module:
    model = build_model("digits-mlp", activation="relu", seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(digits.inputs), digits.targets).backward()
        optimizer.step()
    return model


tables = {}
for learning_rate in (0.02, 0.2):
    problem = sm.Problem(trained(learning_rate), torch.nn.CrossEntropyLoss(), digits.tensors)
    tables[learning_rate] = sm.measure(problem, ["loss", "sharpness", "hessian_trace"], data_groups=8)
    print(f"learning rate {learning_rate}\n{tables[learning_rate]}\n")

# %%
# A measurement knows its uncertainty: the solver's bound and the interval over data are different things.

for table in tables.values():
    entry = table["sharpness"]
    low, high = entry.estimate.interval
    assert low < entry.value < high
    assert entry.error < 2e-3 * entry.value
