"""Optimisers that look at the loss from a second point: SAM, ASAM, explicit Jacobian regularisation; as `sm.optim`."""

from spherometer.training.optim.explicit_jacobian import EJR, EJRv2
from spherometer.training.optim.marking import logits
from spherometer.training.optim.sharpness_aware import ASAM, SAM
from spherometer.training.optim.two_pass import TwoPass
from spherometer.training.statistics import frozen_statistics

__all__ = ["ASAM", "EJR", "SAM", "EJRv2", "TwoPass", "frozen_statistics", "logits"]
