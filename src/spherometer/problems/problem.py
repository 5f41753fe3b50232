"""The empirical loss as a pure function of the chosen parameters, on fixed replayable data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from spherometer.problems.batches import Chosen, as_batches, fingerprint, num_samples, numbered, placed, take
from spherometer.problems.losses import (
    Count,
    Loss,
    check_reduction,
    check_targets,
    count_terms,
    counts_nothing,
    on_device,
)
from spherometer.problems.modes import BatchNorm, as_written, differentiating, measuring_mode
from spherometer.problems.pieces import Evaluation, NonFiniteError, Piece, State
from spherometer.problems.trial import halves_agree, refuse_unusable
from spherometer.problems.weights import flatten, selected_names, unflatten

Forward = Callable[[nn.Module, Any], tuple[Any, Any]]
Variant = TypeVar("Variant", bound="Problem")


@dataclass(frozen=True, eq=False)
class Problem:
    """The empirical loss l(θ) = N⁻¹ Σ c(f_θ(x_i), y_i) as a pure function of the chosen parameters (A Eq 1-2).

    It owns every convention of a measurement: loss, data, batch-norm mode, dropout, parameters, dtype, memory.
    Measuring through it leaves weights, buffers, `.grad`, modes and the global random state as they were. It follows
    the live model: a measurement is made at the weights the model has when the operator is built.

    Args:
        loss: a scalar mean over samples, such as `torch.nn.CrossEntropyLoss()` or `HalfSquaredError()`. Weight decay
            is not part of it; label smoothing is.
        data: (inputs, targets), a list of batches, or a DataLoader that does not shuffle. Several inputs go into a
            tuple or dict in the place of inputs.
        batchnorm: "eval" uses the running statistics, "train" those of each batch; the buffers stay untouched.
        parameters: name pattern(s); "fc" and "fc.*" are all parameters of module fc. Frozen ones are never chosen;
            the choice is made once, here.
        forward: (model, batch) -> (outputs, targets), for batches that are not pairs.
        count: (outputs, targets) -> number of loss terms, where it cannot be told from the loss and the targets.
        dropout: None switches it off; a seed replays the same masks in every pass.
        dtype: None keeps the model's own; `torch.float64` measures a float32 model in double precision.
        memory: bytes that kept graphs may take; beyond it they are computed again for each product.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> problem = Problem(model, nn.CrossEntropyLoss(), (torch.randn(8, 3), torch.randint(2, (8,))))
        >>> problem.num_parameters
        8
    """

    model: nn.Module
    loss: Loss
    data: Any
    batchnorm: BatchNorm = "eval"
    parameters: str | Sequence[str] = "*"
    forward: Forward | None = None
    count: Count | None = None
    dropout: int | None = None
    dtype: torch.dtype | None = None
    memory: float = 4e9
    plans: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # what operators learned of its size
    _seen: dict[int, tuple[Any, ...]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", as_written(self.model))
        if self.batchnorm not in ("eval", "train"):
            raise ValueError(f"expected batchnorm='eval' or 'train', got {self.batchnorm!r}")
        if not callable(self.loss):
            raise TypeError(f"expected a loss function (outputs, targets) -> scalar, got {type(self.loss).__name__}")
        if self.memory <= 0:
            raise ValueError(f"expected memory as a positive number of bytes, got {self.memory}")
        check_reduction(self.loss)
        self.names, self.batches  # noqa: B018  these refuse what cannot be measured
        refuse_unusable(self)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the chosen parameters in the order of the flat vector."""
        return selected_names(self.model, self.parameters)

    @cached_property
    def batches(self) -> Any:
        """The data as a replayable sequence of batches."""
        return as_batches(self.data)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shape of each chosen parameter, by name."""
        return {name: self.model.get_parameter(name).shape for name in self.names}

    @property
    def num_parameters(self) -> int:
        """Length of the flat vector."""
        return sum(shape.numel() for shape in self.shapes.values())

    @property
    def device(self) -> torch.device:
        """Where the chosen parameters live."""
        return self.model.get_parameter(self.names[0]).device

    @property
    def precision(self) -> torch.dtype:
        """The dtype the measurement is made in."""
        return self.dtype or self.model.get_parameter(self.names[0]).dtype

    @cached_property
    def criterion(self) -> Loss:
        """The loss with its own tensors in the problem's device and dtype."""
        return on_device(self.loss, self.device, self.precision)

    @cached_property
    def _places(self) -> dict[str, list[str]]:
        """All names of each weight and buffer, one for each module that holds it, by its first name.

        `functional_call` can tie weights too, but it leaves a module that is registered twice without its parameters.
        """
        places: dict[int, list[str]] = {}
        for path, module in self.model.named_modules():
            for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None:
                    places.setdefault(id(tensor), []).append(f"{path}.{key}" if path else key)
        return {names[0]: names for names in places.values()}

    @cached_property
    def splittable(self) -> bool:
        """Whether a batch may be cut into pieces without changing the mean: its samples do not see each other."""
        mixes = self.batchnorm == "train" and any(isinstance(m, _NormBase) for m in self.model.modules())
        return not mixes and self.dropout is None and halves_agree(self)

    def select(self, parameters: str | Sequence[str]) -> Problem:
        """The same loss as a function of other parameters, the rest held fixed."""
        return replace(self, parameters=parameters)

    def restricted(self, data: Any) -> Problem:
        """The same problem on other data, or on some of its own; what was found out about it is kept."""
        return self.derived(type(self), data=data, plans=self.plans)

    def alone(self, number: int, batch: Any, *, memory: float) -> Problem:
        """The problem of one of its batches, which keeps the dropout masks of its number."""
        return self.derived(type(self), data=Chosen([(number, batch)]), memory=memory, plans={})

    def in_dtype(self, dtype: torch.dtype) -> Problem:
        """The same problem in another precision."""
        return self.derived(type(self), dtype=dtype, plans={})

    def sample(self, num: int) -> Problem:
        """The same problem on the first `num` samples of the first batch, for cheap trials."""
        number, first = next(numbered(self.batches))
        size = num_samples(first)
        return self.restricted(Chosen([(number, first if size is None else take(first, 0, min(num, size)))]))

    def state(self, at: Tensor | State | None = None) -> State:
        """A copy of the model's weights and buffers, the chosen ones ready to be differentiated.

        Args:
            at: a flat vector to use in the place of the model's chosen weights, or a state, which is copied only where
                other weights are chosen or the precision is another: nobody writes into one.
        """
        if isinstance(at, State) and at.names == self.names and at.weights[0].dtype == self.precision:
            return at
        with differentiating():
            live = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
            tensors = at.tensors if isinstance(at, State) else live
            copies = {name: self._copied(tensor) for name, tensor in tensors.items()}
            chosen = [copies.pop(name) for name in self.names]
            if isinstance(at, Tensor):
                self._refuse_bad_vector(at)
                chosen = unflatten(at.detach().to(self.device, self.precision).clone(), chosen)
            return State(self.names, tuple(weight.requires_grad_() for weight in chosen), copies)

    def pieces(self, size: int | None = None) -> Iterator[Piece]:
        """Every batch in order, cut into pieces of at most `size` samples where that changes nothing."""
        for index, content in numbered(self.batches):
            self.refuse_changed(index, content)
            whole = placed(content, self.device, self.precision)
            total = num_samples(whole) if self.splittable else None
            if size is None or total is None or total <= size:
                yield Piece(index, whole)
            else:
                for start in range(0, total, size):
                    yield Piece(index, take(whole, start, min(start + size, total)), start)

    def outputs(self, state: State, piece: Piece) -> tuple[Any, Any]:
        """Outputs and targets of one piece, as a differentiable function of `state.weights`."""
        tensors = state.tensors
        if self.batchnorm == "train" or self.dropout is not None:  # modules in training mode write into their buffers
            tensors |= {name: tensor.clone() for name, tensor in state.fixed.items()}
        network = _Network(self.model, self.forward or _forward_pair)
        renamed = {f"model.{key}": tensor for name, tensor in tensors.items() for key in self._places[name]}
        with self._mode(piece.index):
            return functional_call(network, renamed, (piece.content,), tie_weights=False)

    def evaluate(self, state: State, piece: Piece) -> Evaluation:
        """Mean loss and number of terms of one piece, as a differentiable function of `state.weights`."""
        return self.judge(*self.outputs(state, piece), piece)

    def judge(self, outputs: Any, targets: Any, piece: Piece) -> Evaluation:
        """Mean loss and number of terms of the outputs of one piece."""
        check_targets(self.loss, outputs, targets)
        count = float((self.count or partial(count_terms, self.loss))(outputs, targets))
        with torch.autocast(self.device.type, enabled=False):
            empty = not count or counts_nothing(self.loss, outputs, targets)
            loss = 0 * outputs.sum() if empty else self.criterion(outputs, targets)
        _refuse_bad_loss(loss, piece.index)
        return Evaluation(loss, count, outputs, targets)

    @cached_property
    def num_terms(self) -> float:
        """Number of loss terms of all the data: samples, or tokens that are not ignored."""
        state = self.state()
        with torch.no_grad():
            total = sum(self.evaluate(state, piece).count for piece in self.pieces())
        refuse_no_terms(total)
        return total

    def loss_at(self, vector: Tensor | None = None) -> float:
        """The loss at a flat vector of weights, by default at the model's own."""
        state = self.state(vector)
        with torch.no_grad():
            parts = [self.evaluate(state, piece) for piece in self.pieces()]
        terms = sum(part.count for part in parts)
        refuse_no_terms(terms)
        return sum(float(part.loss) * part.count for part in parts) / terms

    def gradient_at(self, vector: Tensor | None = None) -> Tensor:
        """The flat gradient of the loss at a flat vector of weights, by default at the model's own."""
        return flatten(self.loss_and_gradient(self.state(vector))[1])

    def loss_and_gradient(self, state: State, pieces: Iterable[Piece] | None = None) -> tuple[float, list[Tensor]]:
        """The loss and its gradient by `state.weights`, from one set of passes over the pieces, by default all."""
        total, terms = 0.0, 0.0
        sums = [torch.zeros_like(weight, requires_grad=False) for weight in state.weights]
        for piece in self.pieces() if pieces is None else pieces:
            with differentiating():
                part = self.evaluate(state, piece)
                gradients = torch.autograd.grad(part.loss, state.weights, materialize_grads=True)
            torch._foreach_add_(sums, list(gradients), alpha=part.count)
            total, terms = total + float(part.loss.detach()) * part.count, terms + part.count
        refuse_no_terms(terms)
        return total / terms, [entry / terms for entry in sums]

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """A flat vector as named tensors."""
        pieces = vector.split([shape.numel() for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def derived(self, kind: type[Variant], **changes: Any) -> Variant:
        """A variant that need not be tried out again."""
        twin = object.__new__(kind)
        kept = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        learned = {"splittable": self.splittable, "names": self.names}
        twin.__dict__.update(kept | learned | changes | {"_seen": {}})
        return twin

    def _copied(self, tensor: Tensor) -> Tensor:
        dtype = self.precision if tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(dtype, copy=True)

    def _mode(self, index: int) -> Any:
        return measuring_mode(
            self.model, batchnorm=self.batchnorm, dropout=self.dropout, index=index, device=self.device
        )

    def refuse_changed(self, index: int, content: Any) -> None:
        """Refuse a batch that is not what it was in an earlier pass."""
        if isinstance(self.batches, list):
            return
        if self._seen.setdefault(index, mark := fingerprint(content)) != mark:
            raise ValueError(
                f"data changed between passes (batch {index}): curvature needs the same samples in every pass; "
                "switch shuffling and augmentation off, or freeze one pass with list(loader)"
            )

    def _refuse_bad_vector(self, vector: Tensor) -> None:
        if tuple(vector.shape) != (self.num_parameters,):
            expected = f"expected a flat vector of {self.num_parameters} weights"
            raise ValueError(f"{expected}, got shape {tuple(vector.shape)}")


class _Network(nn.Module):
    """Model and forward function as one module, so that any forward runs with exchanged weights."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self.calculate = forward

    def forward(self, batch: Any) -> tuple[Any, Any]:
        return self.calculate(self.model, batch)


def _forward_pair(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError(
            f"expected batches of the form (inputs, targets), got {type(batch).__name__}: "
            "say how to use them with Problem(..., forward=lambda model, batch: (outputs, targets))"
        )
    inputs, targets = batch
    if isinstance(inputs, Mapping):
        return model(**inputs), targets
    return (model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)), targets


def refuse_no_terms(terms: float) -> None:
    """Refuse data without a single loss term: a mean over nothing."""
    if not terms > 0:
        raise ValueError(f"expected data with at least one loss term, got {terms:g}: are all targets ignored?")


def _refuse_bad_loss(loss: Any, index: int) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"expected a loss that is a scalar mean over samples, got {got}: use reduction='mean'")
    if not torch.isfinite(loss):
        raise NonFiniteError(
            f"the loss is {float(loss.detach())} on batch {index}: look for exploding weights or bad inputs there"
        )
