"""
A callback for the Hugging Face Trainer
=======================================

The sharpness of a small language model, measured while the Trainer trains it.
"""

import tempfile

import torch

import spherometer as sm
from spherometer.integrations.huggingface import TrainerTracker

# isort: split
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
tokens = torch.randint(0, 32, (64, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]


def forward(network, batch):
    logits = network(input_ids=batch["input_ids"]).logits
    return logits[:, :-1].reshape(-1, 32), batch["input_ids"][:, 1:].reshape(-1)


problem = sm.Problem(model, torch.nn.CrossEntropyLoss(), [{"input_ids": tokens[:32]}], forward=forward)
tracker = sm.Tracker(problem, ["sharpness"], every=4, on_error="raise")
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=12,
    per_device_train_batch_size=16,
    learning_rate=1e-3,
    logging_steps=1,
    report_to=[],
    use_cpu=True,
    save_strategy="no",
    disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=data, callbacks=[TrainerTracker(tracker)]).train()

for row in tracker.series("sharpness"):
    print(f"step {row.step:3d}  sharpness {row.value:.4g} ± {row.error:.1g}  ({row.products} products)")
assert [row.step for row in tracker.series("sharpness")] == [1, 4, 8, 12]
assert len(tracker.series("stability_ratio")) == 3  # the schedule ends with a learning rate of zero
