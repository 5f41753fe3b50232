"""A file is there whole or not at all, and others may read it."""

import os
import stat

import pytest

from spherometer.records.files import write_whole


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "below" / "page.html"
    write_whole(path, b"first")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("the disk is gone")))
        with pytest.raises(OSError, match="gone"):
            write_whole(path, b"second")
    assert path.read_bytes() == b"first"
    write_whole(path, b"third")
    assert path.read_bytes() == b"third"
    assert os.listdir(path.parent) == ["page.html"]


def test_permissions_are_those_of_any_new_file(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    write_whole(tmp_path / "ours", b"")
    usual, ours = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "ours"))
    assert ours == usual
