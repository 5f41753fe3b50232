"""Two processes: each climbs its own gradient, gradients are exchanged once, weights stay the same on both."""

import os

import pytest
import torch
from optimiser_cases import KINDS, RADII, batch, closure_of, direction_of, flat, gradient_at, network
from torch import distributed, multiprocessing
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from reference.agreement import assert_close


def train(rank, folder):
    """Two steps of every optimiser on this process's half of the batch."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    inputs, targets = batch(8)
    half = slice(4 * rank, 4 * rank + 4)
    found = {}
    for kind in KINDS:
        model = DistributedDataParallel(network(batchnorm=kind == "SAM"))
        rates = {"rho": RADII[kind], "lr": 0.5}
        optimizer = KINDS[kind](model.parameters(), torch.optim.SGD, model=model, **rates)
        states = []
        for _ in range(2):
            optimizer.step(closure_of(optimizer, model, [(inputs[half], targets[half])]))
            states.append(flat(model.parameters()))
        found[kind] = torch.stack(states)
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def gradient_on(kind, model, data):
    """What one process contributes to the first step."""
    weights, u = flat(model.parameters()), direction_of(0)

    def logit(z, y):
        return (z @ u).mean()

    slope = gradient_at(model, weights, logit if "EJR" in kind else functional.cross_entropy, data)
    tilt = weights.abs() + 0.01 if kind == "ASAM" else torch.ones_like(weights)
    top = weights + RADII[kind] * tilt**2 * slope / (tilt * slope).norm()
    extra = 0.03 if kind == "EJRv2" else 0.0
    return gradient_at(model, top, lambda z, y: functional.cross_entropy(z, y) + extra * logit(z, y), data)


@pytest.mark.slow
def test_two_processes(tmp_path):
    multiprocessing.spawn(train, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    inputs, targets = batch(8)
    for kind in KINDS:
        assert torch.equal(first[kind], second[kind]), kind
        if kind == "SAM":
            continue  # with batch norm: here only that processes agree
        model = network()
        halves = [(inputs[:4], targets[:4]), (inputs[4:], targets[4:])]
        mean = torch.stack([gradient_on(kind, model, half) for half in halves]).mean(0)
        assert_close(first[kind][0], flat(model.parameters()) - 0.5 * mean)
