"""The path of the weights is laid flat without being bent."""

import sys

import numpy as np
import pytest

from spherometer.figures import draw_trajectory, flattened


def test_principal_components_keep_a_plane_as_it_is(tmp_path):
    rng = np.random.default_rng(0)
    plane, frame = rng.standard_normal((30, 2)), np.linalg.qr(rng.standard_normal((50, 2)))[0]
    places, label = flattened(plane @ frame.T + 3.0)
    assert "100% of the variance" in label
    wanted = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    assert np.allclose(np.linalg.norm(places[:, None] - places[None], axis=2), wanted)
    draw_trajectory(tmp_path / "path.png", range(30), plane @ frame.T)
    assert (tmp_path / "path.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_points_are_told(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="at least 3 points"):
        flattened(np.zeros((2, 5)))
    with pytest.raises(ValueError, match="expected finite points"):
        flattened(np.full((5, 5), np.nan))
    with pytest.raises(ValueError, match="expected method"):
        flattened(np.eye(5), "tsne")
    with pytest.raises(ValueError, match="as many points as steps"):
        draw_trajectory(tmp_path / "path.png", [1], np.eye(5))
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ImportError, match="pip install umap-learn"):
        flattened(np.eye(5), "umap")
