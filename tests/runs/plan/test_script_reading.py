"""Which sources a command starts: found by its words, by scripts of a shell, and by imports."""

import pytest
from testbed.profiles import profile

from launcher.check.reading.script_use import imported, script_use
from launcher.config.command_check import not_installed
from launcher.planning.assembly import plan
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job

AWARE = "import launcher_worker as w\nw.autocast()\n"
FACTS = {
    "host_id": "h", "boot_id": "b", "hostname": "login1", "user": "me", "platform": "linux", "machine": "x86_64",
    "cpus": 2, "root": "/r", "python": "3.11.2",
}  # fmt: skip
FILES = {
    "train.py": "print('hi')\n",
    "aware.py": AWARE,
    "imports.py": "import helper\n",
    "helper.py": "from pkg.deep import thing\n",
    "pkg/__init__.py": "",
    "pkg/deep.py": "from . import sibling\n",
    "pkg/sibling.py": AWARE,
    "pkg/__main__.py": "from .deep import thing\n",
    "src/lib/__init__.py": AWARE,
    "uses_src.py": "import lib\n",
    "starts.py": "import subprocess\nsubprocess.run(['python', 'aware.py'])\n",
    "run.sh": '#!/bin/sh\nset -e  # it\'s a start\nexec python aware.py "$@"\n',
    "plain.sh": "python train.py\n",
    "scripts/go": "#!/bin/sh\ntorchrun --nproc-per-node 2 aware.py\n",
    "scripts/near.py": "import beside\n",
    "scripts/beside.py": AWARE,
    "broken.py": "def (:\nimport launcher_worker\n",
    "loop.py": "import loop\n",
}


@pytest.fixture
def folder(tmp_path):
    """A folder with scripts that take the precision, and others."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.bin").write_bytes(bytes(range(256)) * 100)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "is_aware"),
    [
        (["python", "train.py"], False),
        (["python", "aware.py", "--lr", "1"], True),
        (["python", "imports.py"], True),
        (["python", "-m", "pkg"], True),
        (["python", "-u", "-m", "pkg.sibling"], True),
        (["python", "uses_src.py"], True),
        (["python", "starts.py"], True),
        (["python", "scripts/near.py"], True),
        (["python", "-c", AWARE], True),
        (["python", "-c", "print(1)"], False),
        (["env", "A=1", "python", "./aware.py"], True),
        (["torchrun", "--nproc-per-node", "2", "aware.py"], True),
        (["accelerate", "launch", "train.py"], False),
        (["bash", "run.sh"], True),
        (["bash", "-c", "python aware.py && echo done"], True),
        (["bash", "plain.sh"], False),
        (["./scripts/go"], True),
        (["python", "train.py", "--data", "data/train.bin"], False),
        (["python", "broken.py"], False),
        (["python", "loop.py"], False),
        (["python", "missing.py"], False),
        (["python", "-m", "trl.scripts.sft"], False),
        (["python", "../elsewhere.py"], False),
        (["/opt/program", "x" * 10_000], False),
        (["true"], False),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_a_command_is_read_as_far_as_it_leads(folder, command, is_aware):
    """To the files of the folder and no further."""
    (folder.parent / "elsewhere.py").write_text(AWARE)
    job = Job(name="x", command=command)
    assert script_use(job, folder).takes == (("base", "precision") if is_aware else ())


@pytest.mark.parametrize(
    ("source", "is_ours"),
    [
        ("w.model_arguments()", True),
        ("w.model_arguments(quantization_config=BitsAndBytesConfig(load_in_4bit=True))", False),
        ("w.model_arguments(quantization_config=config)", False),
        ("w.model_arguments(quantization_config = None)", True),
    ],
)
def test_a_script_that_quantizes_decides_how_large_its_base_is(folder, source, is_ours):
    """One that keeps a teacher from it does not."""
    (folder / "train.py").write_text(f"{AWARE}{source}\n")
    taken = script_use(Job(name="x", command=("python", "train.py")), folder).takes
    assert ("base" in taken) == is_ours


@pytest.mark.parametrize(("method", "adapt", "is_ours"), [("full", True, False), ("lora", True, True), ("full", False, True)])  # fmt: skip
def test_an_adapted_script_with_an_adapter_of_its_own_is_not_taken_for_a_full_fine_tune(
    folder, method, adapt, is_ours
):
    """Unless the job says that it trains one. A script that takes precision from the worker trains what the plan says."""
    (folder / "train.py").write_text(
        f"{AWARE}w.model_arguments()\nmodel = peft.get_peft_model(model, config)\n"
    )
    job = Job(name="x", command=("python", "train.py"), method=method, adapt=adapt)
    assert ("base" in script_use(job, folder).takes) == is_ours


@pytest.mark.parametrize(
    ("command", "modules"),
    [
        (["python", "needs.py"], {"torch": "needs.py", "near": "needs.py", "json": "near.py"}),
        (["python", "-c", "import torch.nn"], {"torch": "-c"}),
        (["python", "lenient.py"], {}),
        (["sh", "-c", ". venv/bin/activate && python needs.py"], {}),
    ],
    ids=["file", "words", "may fail", "shell"],
)
def test_modules_that_a_script_cannot_start_without_are_found(folder, command, modules):
    (folder / "needs.py").write_text("import near\nfrom torch.utils import data\n")
    (folder / "near.py").write_text("import json\n")
    (folder / "lenient.py").write_text("try:\n    import torch\nexcept ImportError:\n    torch = None\n")
    assert imported(Job(name="train", command=tuple(command)), folder) == modules


@pytest.mark.parametrize(
    ("packages", "requirements", "is_noted"),
    [
        ({"torch": None}, (), True),
        ({"torch": "2.13.0"}, (), False),
        ({}, (), False),  # the probe did not look
        ({"torch": None}, ("torch",), False),  # the gate says that
    ],
)
def test_a_package_that_the_hosts_python_lacks_is_noted_before_the_start(
    folder, packages, requirements, is_noted
):
    (folder / "train.py").write_text("import torch\n")
    job = Job(name="train", command=("python", "train.py"), requirements=requirements)
    interpreter = {"path": "/usr/bin/python3", "version": "3.11.2", "packages": packages}
    facts = Facts.model_validate({**FACTS, "interpreter": interpreter})
    made = plan(profile("cpu"), Host(name="hive", address="hive"), job)
    notes = list(not_installed(made, facts, job, folder))
    assert [(one.level, one.code) for one in notes] == [("note", "import-missing")] * is_noted
    if is_noted:
        assert "/usr/bin/python3 lacks torch, which train.py imports" in notes[0].message
        assert 'environment = "~/venvs/…"' in notes[0].mend
