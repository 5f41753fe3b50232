"""Squared gradients of embeddings: one table for all samples."""

import pytest
import torch
from torch import nn

from metrics.live_bytes import LiveBytes
from spherometer import EmpiricalFisher, Problem


class Mean(nn.Module):
    def forward(self, inputs):
        return inputs.mean(1)


def bag(num_rows, width, num, length, padding=None):
    """A bag of words with repeated words, and with the padding word among them."""
    model = nn.Sequential(nn.Embedding(num_rows, width, padding_idx=padding), Mean(), nn.Linear(width, 3)).double()
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(min(6, num_rows), (num, length), generator=generator)
    return Problem(model, nn.CrossEntropyLoss(), (words, torch.arange(num) % 3), parameters="0.weight")


@pytest.mark.parametrize("padding", [None, 2])
def test_the_diagonal_is_the_mean_of_squared_gradients(padding):
    problem = bag(8, 4, 5, 7, padding)
    words, labels = problem.batches[0]
    singles = [problem.restricted([(words[k : k + 1], labels[k : k + 1])]).gradient_at() for k in range(5)]
    truth = torch.stack(singles).square().mean(0)
    torch.testing.assert_close(EmpiricalFisher(problem).exact_diagonal(), truth, rtol=1e-12, atol=1e-15)


def test_no_sample_makes_a_table_of_its_own():
    made = []
    for num in (2, 16):
        matrix = EmpiricalFisher(bag(20_000, 8, num, 5))
        matrix.exact_diagonal()
        with LiveBytes() as live:
            matrix.exact_diagonal()
        made.append(live.made / (20_000 * 8 * 8))
    assert made[1] < made[0] + 1
