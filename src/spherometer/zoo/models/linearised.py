"""A network replaced by its first-order expansion in the weights, the lazy limit of wide networks.  A section 5."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.func import functional_call, jvp


class Linearised(nn.Module):
    """f(x; w0) + Df(x; w0)(w - w0): w0 are the weights at construction (buffers), w the parameters.

    Exactly linear in w, so the Hessian of a loss equals its Gauss-Newton matrix. Batch norm must be in eval mode.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        for place, parameter in enumerate(self.model.parameters()):
            self.register_buffer(f"anchor{place}", parameter.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        """Value and directional derivative in one forward-mode pass."""
        current = dict(self.model.named_parameters())
        anchors = {name: self.get_buffer(f"anchor{place}") for place, name in enumerate(current)}
        steps = {name: parameter - anchors[name] for name, parameter in current.items()}

        def network(weights: dict[str, Tensor]) -> Tensor:
            outputs: Tensor = functional_call(self.model, weights, (inputs,))
            return outputs

        value, change = jvp(network, (anchors,), (steps,))[:2]
        total: Tensor = value + change
        return total
