"""
A run that is interrupted
=========================

Half a run, a checkpoint, and the other half by somebody else: the numbers are those of a run that was left in peace.
"""

import tempfile

import torch
from torch import nn

from spherometer.training import Mixup, Plain, Training, load_checkpoint, optim, save_checkpoint
from spherometer.training.schedules import cosine
from spherometer.zoo import build_model, load_data

data = load_data("digits", num=300).tensors


def begin():
    model = build_model("digits-cnn", batchnorm=True, seed=0)
    optimizer = optim.SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.05, momentum=0.9, model=model)
    mix = Mixup(0.5, num_classes=10)
    return Training(model, optimizer, data, Plain(nn.CrossEntropyLoss()), 64, transforms=[mix], schedule=cosine(8))


# %%
# A run in peace.
whole = [step.loss for step in begin().run(40)]

# %%
# The same in two sessions.
with tempfile.TemporaryDirectory() as folder:
    first = begin()
    losses = [step.loss for step in first.run(23)]
    save_checkpoint(first, folder)

    second = begin()
    assert load_checkpoint(second, folder) is not None
    losses += [step.loss for step in second.run(40)]

assert losses == whole
print(f"loss {whole[0]:.4f} -> {whole[-1]:.4f}, the same to the last digit")
