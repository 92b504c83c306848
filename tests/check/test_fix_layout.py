"""`launch check --fix` on scripts of an odd layout: the mend is right, or it is not made."""

import os
from pathlib import Path

import pytest

from launcher.base.whole_file import write_whole

_LOAD = "import torch\nx = "
_DDP = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
_RANK = "f\"cuda:{os.environ['LOCAL_RANK']}\""
_SET = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
_SCALED = """import torch
model = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters())
scaler = torch.amp.GradScaler()
for x in []:
    scaler.scale(model(x)).backward()
"""
_IN_FUNCTIONS = """import torch
def step(opt):
    opt.step()
def train(model):
    opt = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler()
    scaler.scale(model(1)).backward()
    step(opt)
"""
_SAVED = "torch.save(model, 'x')\n"


def fixed(client, source, *words):
    """Mend a script twice; return its text. The second time changes nothing."""
    path = client.project / "train.py"
    path.write_bytes(source.encode())
    client.run("check", "--fix", *words)
    once = path.read_bytes()
    client.run("check", "--fix", *words)
    assert path.read_bytes() == once
    return once.decode()


@pytest.mark.parametrize(
    ("call", "mended"),
    [
        ("torch.load('a\u2028b', mmap=False)", "torch.load('a\u2028b', mmap=False, map_location=\"cpu\")"),
        ("torch.load('a\x0cb', mmap=False)", "torch.load('a\x0cb', mmap=False, map_location=\"cpu\")"),
        ("(torch.load)('a')", "(torch.load)('a', map_location=\"cpu\")"),
        ("(torch.load  # b)\n)('a')", "(torch.load  # b)\n)('a', map_location=\"cpu\")"),
        ("torch.load(\r  'a'\r)", "torch.load(\r  'a',\r  map_location=\"cpu\"\r)"),
        ("torch.load(\n  'a'  # b\n)", "torch.load(\n  'a',  # b\n  map_location=\"cpu\"\n)"),
    ],
)
def test_an_argument_is_added_where_python_sees_the_end(client, call, mended):
    """Python ends no line at a form feed or at U+2028, and a comment stays with its argument."""
    newline = "\r" if "\r" in call else "\n"
    source = _LOAD.replace("\n", newline)
    assert fixed(client, f"{source}{call}{newline}") == f"{source}{mended}{newline}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Doc."""\n', '"""Doc."""\nimport os\n'),
        ("from __future__ import annotations\n", "from __future__ import annotations\nimport os\n"),
        (
            "from __future__ import annotations; import sys\n",
            "from __future__ import annotations; import os; import sys\n",
        ),
        ("\ufeff# a\n", "\ufeff# a\nimport os\n"),
    ],
)
def test_an_import_is_added_where_it_may_stand(client, before, after):
    """After the docstring and `from __future__`, also in one line with them, and after a byte order mark."""
    source = f"{before}def main():\n    {_DDP[:-1].replace(chr(10), chr(10) + '    ')}\n    dist.init_process_group()\n    DDP(x.to(CARD))\n"
    assert fixed(client, source.replace("CARD", "'cuda:0'")) == source.replace(before, after, 1).replace(
        "CARD", _RANK
    )


@pytest.mark.parametrize("other", ["os = 'linux'\n", "def f(os): pass\n", "from sys import path as os\n"])
def test_a_name_that_means_another_thing_is_not_used(client, other):
    """`os` may be a variable of the script."""
    source = f"{_DDP}{other}dist.init_process_group()\nDDP(x.to('cuda:0'))\n"
    assert fixed(client, source) == source


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dist.init_process_group(); DDP(x.cuda())\n", f"dist.init_process_group(); {_SET}; DDP(x.cuda())\n"),
        (
            "if a: dist.init_process_group()\nDDP(x.cuda())\n",
            f"if a: dist.init_process_group(); {_SET}\nDDP(x.cuda())\n",
        ),
        ("start = lambda: dist.init_process_group()\nDDP(x.cuda())\n", None),
        ("if a:\n    dist.init_process_group()\n    DDP(x)\nelse:\n    x.to('cuda:0')\n", None),
    ],
)
def test_a_card_is_chosen_where_ranks_start(client, before, after):
    """Not after a line that does more, and not where there are no ranks."""
    assert fixed(client, f"import os\n{_DDP}{before}") == f"import os\n{_DDP}{after or before}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    if x: opt.step()\n", "    if x: scaler.step(opt); scaler.update()\n"),
        ("    opt.step(); f()\n", "    scaler.step(opt); scaler.update(); f()\n"),
    ],
)
def test_a_step_and_its_update_stay_together(client, before, after):
    """In a branch of one line too: `update` without a step fails."""
    assert fixed(client, _SCALED + before + _SAVED) == _SCALED + after + _SAVED


def test_gradients_are_unscaled_once(client):
    """Not before each clipping, and not for each parameter."""
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1)\n"
    end = f"    scaler.step(opt)\n    scaler.update()\n{_SAVED}"
    assert (
        fixed(client, f"{_SCALED}    {clip}    {clip}{end}")
        == f"{_SCALED}    scaler.unscale_(opt)\n    {clip}    {clip}{end}"
    )
    looped = f"{_SCALED}    for p in q:\n        {clip}{end}"
    assert fixed(client, looped) == looped


@pytest.mark.parametrize(
    "source",
    [
        _IN_FUNCTIONS,
        "from accelerate import Accelerator\nm = Net().to('cuda:0')\nown = Accelerator(mixed_precision='no')\nown.prepare(m)\n",
    ],
)
def test_a_mend_uses_no_name_that_is_unknown_there(client, source):
    """A scaler of another function, an accelerator that is made later."""
    assert fixed(client, source) == source


@pytest.mark.parametrize(
    ("before", "after"),
    [("(a or b) and c", "(a or b) and c"), ("(lambda: 1)()", "(lambda: 1)()"), ("(*a)", None)],
)
def test_what_was_compiled_keeps_its_parentheses(client, before, after):
    """And what cannot stand alone stays as it is."""
    source = f"import torch\nx = torch.compile{before}\n"
    assert fixed(client, source, "--profile", "p100") == (f"import torch\nx = {after}\n" if after else source)


def test_a_read_only_file_is_left_and_its_problem_told(client):
    """The problems of a file that was not written are still there."""
    client.script("import torch\ntorch.load('x')\n")
    path = client.project / "train.py"
    path.chmod(0o444)
    done = client.run("check", "--fix")
    assert done.returncode == 1
    assert "is read-only: not mended" in done.stdout
    assert "Mended" not in done.stdout
    assert "1 problem in 1 of 1 file" in done.stdout


def test_a_planted_link_is_not_written_through(tmp_path):
    """Of the name that the new contents get first."""
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / f"a.py.{os.getpid()}.part").symlink_to(other)
    write_whole(tmp_path / "a.py", b"new", Path(__file__).stat())
    assert other.read_text() == "kept"
    assert not (tmp_path / "a.py").is_symlink()


def test_diff_is_a_patch_also_with_rare_spaces(client):
    """Without what a terminal obeys."""
    client.script("import torch\ntorch.load('\u2028\xa0\x0c\x1b[31m')\n")
    out = client.run("check", "--diff").stdout
    assert "+torch.load('\u2028\xa0\x0c[31m', map_location=\"cpu\")" in out
