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
    with pytest.raises(ImportError, match=r"pip install 'spherometer\[umap\]'"):
        flattened(np.eye(5), "umap")


@pytest.mark.filterwarnings("error::UserWarning")
def test_umap_keeps_two_ends_of_a_path_apart():
    pytest.importorskip("umap", reason="pip install 'spherometer[umap]'")
    rng = np.random.default_rng(0)
    near, far = rng.standard_normal((20, 8)), rng.standard_normal((20, 8)) + 50
    places, label = flattened(np.concatenate([near, far]), "umap")
    assert label == "UMAP"
    assert places.shape == (40, 2)
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    assert apart[:20, 20:].min() > apart[:20, :20].max()
    again, _ = flattened(np.concatenate([near, far]), "umap")
    assert (places == again).all()
    assert np.isfinite(flattened(near[:4], "umap")[0]).all()
    with pytest.raises(ValueError, match="at least 4 points"):
        flattened(near[:3], "umap")
