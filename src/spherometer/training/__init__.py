"""Problem -> steps: descending on exactly the loss that is measured."""

from spherometer.training.descent import Step, gradient_descent

__all__ = ["Step", "gradient_descent"]
