"""Which checkpoints are there, and which are set aside."""

import json

from launcher.remote.checkpoints import sealed, set_aside


def make(folder, name, manifest):
    (folder / name).mkdir()
    if manifest is not None:
        (folder / name / "manifest.json").write_text(manifest)


def test_only_what_the_worker_has_sealed_is_a_checkpoint(tmp_path):
    """Neither one without a manifest, nor a torn one, a hidden one, or a file."""
    make(tmp_path, "step-10", json.dumps({"step": 10}))
    make(tmp_path, "step-9", json.dumps({"step": 9}))
    make(tmp_path, "step-11", None)
    make(tmp_path, "step-12", '{"step": 1')
    make(tmp_path, "step-13", json.dumps({"step": "13"}))
    make(tmp_path, ".step-14.new", json.dumps({"step": 14}))
    (tmp_path / "notes").write_text("")
    assert [step for step, _ in sealed(str(tmp_path))] == [9, 10]
    assert sealed(str(tmp_path / "missing")) == []


def test_what_is_set_aside_is_whole_and_out_of_the_way_and_twice_is_once(tmp_path):
    """From the first bad step on; one of the same name later goes beside it."""
    for _ in range(2):
        for step in (2, 4, 6):
            if not (tmp_path / f"step-{step}").exists():
                make(tmp_path, f"step-{step}", json.dumps({"step": step}))
        assert set_aside(str(tmp_path), 4) == ["step-4", "step-6"]
        assert set_aside(str(tmp_path), 4) == []
        assert [step for step, _ in sealed(str(tmp_path))] == [2]
    assert len(list(tmp_path.glob(".rejected-*/step-4/manifest.json"))) == 2
