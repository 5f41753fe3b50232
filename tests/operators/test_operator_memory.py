"""A stated memory limit changes how a product is computed, never its value."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from peak_memory import needs_peaks, printed_by
from reference.agreement import assert_close
from reference.cases import BY_NAME, random_block
from spherometer import EmpiricalFisher, Fisher, GaussNewton, Hessian, Problem
from spherometer.operators import CurvatureOperator

KINDS = [Hessian, GaussNewton, Fisher, EmpiricalFisher]


def make(memory: float, *, num: int = 24, batch: int = 6) -> Problem:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)).double()
        inputs, targets = torch.randn(num, 2, 6, 6, dtype=torch.float64), torch.randint(3, (num,))
    batches = list(zip(inputs.split(batch), targets.split(batch), strict=True))
    return Problem(model, nn.CrossEntropyLoss(), batches, memory=memory)


class Alive:
    """Counts the bytes of distinct storages that graphs hold at once, by the life of what they save.

    Weights and data exist anyway and are not counted.
    """

    def __init__(self, operator: CurvatureOperator) -> None:
        known = [*operator.state.weights, *(x for batch in operator.problem.batches for x in batch)]
        self.sizes = {tensor.untyped_storage().data_ptr(): [1, 0] for tensor in known}
        self.now, self.peak = 0, 0

    def pack(self, tensor):
        return Held(self, tensor)

    def add(self, pointer: int, size: int) -> None:
        entry = self.sizes.setdefault(pointer, [0, size])
        if entry[0] == 0:
            entry[1] = size
            self.now += size
            self.peak = max(self.peak, self.now)
        entry[0] += 1

    def drop(self, pointer: int) -> None:
        entry = self.sizes[pointer]
        entry[0] -= 1
        if entry[0] == 0:
            self.now -= entry[1]


class Held:
    def __init__(self, alive: Alive, tensor) -> None:
        self.alive, self.tensor = alive, tensor.detach()  # the tensor itself would make a cycle
        self.pointer = tensor.untyped_storage().data_ptr()
        alive.add(self.pointer, tensor.untyped_storage().nbytes())

    def __del__(self) -> None:
        self.alive.drop(self.pointer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", [1.0, 1e4, 3e4, 4e9])
def test_the_limit_does_not_change_the_product(kind, memory):
    free = make(4e9)
    vectors = random_block(free.num_parameters, 1)
    truth = kind(free) @ vectors
    operator = kind(make(memory))
    for _ in range(3):  # graphs may be kept in the first pass, or only when their number is known
        assert_close(operator @ vectors, truth, 1e-12)
    assert_close(operator.gradient(), kind(free).gradient(), 1e-12)


@pytest.mark.parametrize("memory", [1.0, 1e4, 3e4])
def test_the_limit_does_not_change_drawn_labels(memory):
    vectors = random_block(make(1.0).num_parameters)
    truth = Fisher(make(4e9), samples=3, seed=1) @ vectors
    assert_close(Fisher(make(memory), samples=3, seed=1) @ vectors, truth, 1e-12)


@pytest.mark.parametrize("memory", [1.0, 1e4])
def test_the_limit_does_not_change_exact_traces(memory):
    truth = GaussNewton(make(4e9)).exact_trace()
    assert GaussNewton(make(memory)).exact_trace() == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_with_enough_memory_every_graph_is_kept(kind):
    operator = kind(make(4e9))
    _ = operator @ random_block(operator.shape[0])
    assert len(operator._kept) == 4
    calls = []
    operator._build = lambda piece: calls.append(piece)  # type: ignore[method-assign]
    _ = operator @ random_block(operator.shape[0])
    assert not calls


def peak_bytes(operator: CurvatureOperator) -> int:
    alive = Alive(operator)
    with saved_tensors_hooks(alive.pack, lambda held: held.tensor):
        for _ in range(3):
            _ = operator @ random_block(operator.shape[0], 1)
    return alive.peak


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", [5e3, 1e4, 2e4, 3e4])
def test_law_graphs_stay_under_the_limit(kind, memory):
    operator = kind(make(memory))
    peak = peak_bytes(operator)
    assert 0.2 * memory < peak <= memory  # and the limit is made use of
    assert operator._kept_bytes <= memory


def test_the_measure_of_this_law_sees_a_graph_that_is_too_large():
    assert peak_bytes(Hessian(make(4e9))) > 3e4


def test_batch_statistics_are_never_cut():
    case = BY_NAME["batch norm train"]
    assert len(list(case.problem(memory=1.0).pieces(1))) == 1
    vectors = random_block(case.problem().num_parameters)
    assert_close(Hessian(case.problem(memory=1.0)) @ vectors, Hessian(case.problem()) @ vectors)


SCRIPT = """
import torch
from torch import nn
import spherometer as sm
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
                      nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
                      nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
data = (torch.randn(512, 3, 32, 32), torch.randint(10, (512,)))
problem = sm.Problem(model, nn.CrossEntropyLoss(), data, memory={memory})
vector = torch.randn(problem.num_parameters)
small = sm.Hessian(sm.Problem(model, nn.CrossEntropyLoss(), (data[0][:8], data[1][:8])))
_ = small @ vector
before = peak()
operator = sm.Hessian(problem)
for _ in range(2):
    _ = operator @ vector
print(peak() - before)
"""


@pytest.mark.slow
@needs_peaks
def test_the_process_stays_near_the_limit():
    """Working memory of the passes comes on top of graphs: at most twice as much, and far less than without a limit."""
    used = {}
    for memory in (1e8, 4e9):
        (used[memory],) = printed_by(SCRIPT.format(memory=memory))
    assert used[1e8] < 3 * 1e8
    assert used[4e9] > 2.5 * used[1e8]


@needs_peaks
def test_peaks_are_those_of_the_process_alone():
    held = bytearray(b"1") * 3 * 10**8
    assert printed_by("print(peak())")[0] < 1e8 < len(held)
    assert printed_by("held = bytearray(b'1') * 2 * 10**8; print(peak())")[0] > 2e8
