"""Memory that is lent is nobody else's while it is lent, and is used again afterwards."""

import pytest
import torch

from spherometer.operators.workspace import Workspace


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_memory_is_used_again():
    workspace = Workspace()
    with workspace.lent((3, 4), torch.float32) as first:
        assert first.shape == (3, 4)
        assert first.dtype == torch.float32
        place = address(first)
    with workspace.lent((2, 3), torch.float64) as second:
        assert second.shape == (2, 3)
        assert second.dtype == torch.float64
        assert address(second) == place
    assert workspace.num_bytes == 48


def test_what_is_lent_twice_lies_apart():
    workspace = Workspace()
    with workspace.lent((5,), torch.float32) as outer:
        outer.fill_(1.0)
        with workspace.lent((5,), torch.float32) as inner:
            inner.fill_(2.0)
        assert outer.tolist() == [1.0] * 5
    assert workspace.num_bytes == 40


def test_memory_grows_to_what_is_asked_for():
    workspace = Workspace()
    for size in (1, 8, 3):
        with workspace.lent((size,), torch.float64) as lent:
            assert len(lent) == size
    assert workspace.num_bytes == 64


def test_memory_comes_back_after_an_error():
    workspace = Workspace()
    with pytest.raises(KeyError), workspace.lent((2,), torch.float32):
        raise KeyError
    assert workspace.num_bytes == 8


def test_memory_from_inference_mode_can_be_written_to_outside():
    workspace = Workspace()
    with torch.inference_mode(), workspace.lent((2,), torch.float32):
        pass
    with workspace.lent((2,), torch.float32) as lent:
        assert lent.fill_(3.0).tolist() == [3.0, 3.0]


def test_nothing_takes_no_memory():
    workspace = Workspace()
    with workspace.lent((0, 7), torch.float32) as lent:
        assert lent.shape == (0, 7)
    assert workspace.num_bytes == 0
