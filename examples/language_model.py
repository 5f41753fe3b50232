"""
A language model: dict batches, ignored tokens, tied weights
============================================================

`forward` says how a batch is used. Padding is marked with -100 and is not a term of the loss, so batches count with
the tokens they really have. The embedding is also the output layer: tied weights are one parameter.
"""

import torch
from torch import nn

import spherometer as sm


class TinyLanguageModel(nn.Module):
    """One transformer layer over a vocabulary of 20 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(tokens)))


torch.manual_seed(0)
model = TinyLanguageModel()
batches = []
for size in (4, 4, 2):
    tokens = torch.randint(20, (size, 9))
    labels = tokens[:, 1:].clone()
    labels[:, -2:] = -100
    batches.append({"tokens": tokens[:, :-1], "labels": labels})

problem = sm.Problem(
    model,
    nn.CrossEntropyLoss(ignore_index=-100),
    batches,
    forward=lambda model, batch: (model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten()),
    dtype=torch.float64,
)
table = sm.measure(problem, ["loss", "sharpness", "gauss_newton_norm", "eigenvector_shares"])
print(table)

# %%
# 10 sequences of 8 tokens, 2 of them ignored, are 60 terms; and nothing of the model has changed.

assert problem.num_terms == 60
assert model.training
assert all(parameter.grad is None for parameter in model.parameters())
