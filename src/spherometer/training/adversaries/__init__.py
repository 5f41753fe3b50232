"""Adversaries: attacks on inputs, the accuracy they leave, and training against them."""

from spherometer.training.adversaries.attacks import PGD, Attack, Noise, fgsm
from spherometer.training.adversaries.balls import Ball, ball
from spherometer.training.adversaries.defences import AdversarialTraining, Trades
from spherometer.training.adversaries.library import AutoAttack, apgd
from spherometer.training.adversaries.masking import gradient_masking
from spherometer.training.adversaries.robustness import proportion, robust_accuracy

__all__ = [
    "PGD",
    "AdversarialTraining",
    "Attack",
    "AutoAttack",
    "Ball",
    "Noise",
    "Trades",
    "apgd",
    "ball",
    "fgsm",
    "gradient_masking",
    "proportion",
    "robust_accuracy",
]
