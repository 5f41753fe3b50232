"""
Training against an adversary
=============================

A plainly trained network and one trained by AT on the embedded digits, judged by PGD with twenty steps.
"""

import torch
from torch import nn

from spherometer.training import PGD, AdversarialTraining, Plain, Training, robust_accuracy
from spherometer.zoo import build_model, load_data

train, test = load_data("digits"), load_data("digits", train=False)
judge = PGD(0.15, num_steps=20)


def trained(objective):
    model = build_model("fcn3-mnist", input_shape=(1, 8, 8), width=32, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in Training(model, optimizer, train.tensors, objective, batch_size=64).run(230):
        pass
    return model


# %%
# The same loop with two objectives. The adversary of training takes five steps, the judge twenty.
plain = trained(Plain(nn.CrossEntropyLoss()))
hardened = trained(AdversarialTraining(PGD(0.15, num_steps=5), torch.Generator().manual_seed(0)))

# %%
# The status tells whether the attack shows signs of failing; the interval is for the choice of test samples.
results = {}
for name, model in (("plain", plain), ("adversarial", hardened)):
    results[name] = robust_accuracy(model, test.tensors, judge, check_masking=True)
    low, high = results[name].interval
    print(f"{name:12} {results[name].value:.3f}, 95 % from {low:.3f} to {high:.3f}; {results[name].note}")

assert all(result.status for result in results.values())
assert results["adversarial"].interval[0] > results["plain"].interval[1]
