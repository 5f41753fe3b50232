"""
A callback for Lightning
========================

The same tracker in a Lightning Trainer; its memory goes into Lightning's checkpoints.
"""

import logging
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

import spherometer as sm
from spherometer.integrations.lightning import LightningTracker
from spherometer.zoo import build_model, load_data

# isort: split
from lightning.pytorch import LightningModule, Trainer

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Digits(LightningModule):
    def __init__(self):
        super().__init__()
        self.network = build_model("digits-mlp", seed=0)

    def forward(self, inputs):
        return self.network(inputs)

    def training_step(self, batch, _):
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(self(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


digits = load_data("digits", num=256)
module = Digits()
problem = sm.Problem(module, torch.nn.CrossEntropyLoss(), digits.tensors)
tracker = sm.Tracker(problem, ["sharpness", sm.Probe("impurity", every="epoch")], every=8)
trainer = Trainer(
    max_epochs=2,
    callbacks=[LightningTracker(tracker)],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    accelerator="cpu",
)
trainer.fit(module, DataLoader(TensorDataset(*digits.tensors), batch_size=32))

for row in tracker.series("preconditioned_sharpness"):
    print(f"step {row.step:3d}  preconditioned sharpness {row.value:.4g} ± {row.error:.1g}")
assert [row.step for row in tracker.series("sharpness")] == [1, 8, 16]
assert [row.step for row in tracker.series("impurity")] == [8, 16]
