"""The files that `launch check` reads: which below a folder, and what it says of those that it cannot check."""

import json
import os
import time

import pytest

WRONG = "x = (\n"
HEAD = b"import torch\nfrom transformers import Trainer\n"


def checked(client, *words):
    """The files with a problem, when every file has one."""
    done = client.run("check", "--json", *words)
    paths = [one["path"] for one in json.loads(done.stdout)["problems"]]
    return {os.path.relpath(path, client.project) for path in paths}


def place(client, *names):
    """Write files that are no Python."""
    for name in names:
        (client.project / name).parent.mkdir(parents=True, exist_ok=True)
        client.script(WRONG, name)


def test_folders_of_packages_and_hidden_ones_are_skipped(client):
    """Environments too, whatever their name."""
    place(client, "a.py", "src/b.py", ".hidden/c.py", ".d.py", "node_modules/e.py", "__pycache__/f.py")
    place(client, "lib/site-packages/g.py", "env/h.py", "runs/i.py", "text.txt")
    (client.project / "env" / "pyvenv.cfg").touch()
    (client.project / "runs" / ".launches").touch()
    assert checked(client) == {"a.py", "src/b.py"}


def test_rules_of_git_and_launch_leave_files_out(client):
    """From the top of the repository down; `!` brings a file back."""
    place(client, "a.py", "data/b.py", "src/c.py", "src/keep.py", "src/gen/d.py", "old/e.py", "old/f.py")
    (client.project / ".git").mkdir()
    client.script("data/\nc.py\n", ".gitignore")
    client.script("gen\n!c.py\n", "src/.gitignore")
    client.script("old\n!old/f.py\n", ".launchignore")
    assert checked(client) == {"a.py", "src/c.py", "src/keep.py", "old/f.py"}
    assert checked(client, "src") == {"src/c.py", "src/keep.py"}


def test_a_named_path_is_always_checked(client):
    """A file of another name, an ignored one, and an ignored folder."""
    place(client, "data/b.py", "script")
    (client.project / ".git").mkdir()
    client.script("data/\n", ".gitignore")
    assert checked(client, "data/b.py", "script") == {"data/b.py", "script"}
    assert checked(client, "data") == {"data/b.py"}


def test_links_are_followed_to_files_and_not_to_folders(client):
    """A loop of folders ends, and a file of two names is checked once."""
    place(client, "src/a.py")
    (client.project / "src" / "loop").symlink_to("..")
    (client.project / "z.py").symlink_to("src/a.py")
    assert len(checked(client)) == 1


HOSTILE = {
    "parens.py": HEAD + b"(" * 100_000,
    "minus.py": HEAD + b"x = " + b"-" * 100_000 + b"1",
    "attributes.py": HEAD + b"torch" + b".b" * 100_000,
    "calls.py": HEAD + b"x = torch" + b".b()" * 400,
    "sums.py": HEAD + b"x = 1" + b" + 1" * 100_000,
    "dict.py": HEAD + b"x = {" + b"".join(b"%d: 'a', " % number for number in range(60_000)) + b"}",
    "null.py": HEAD + b"\0",
    "latin.py": "# coding: latin-1\nimport torch\nx = '\u00e9'\n".encode("latin-1"),
    "unnamed.py": b"import torch\nx = '\xe9'\n",
    "unknown.py": b"# coding: nonsense\nimport torch\n",
    "punycode.py": b"# coding: punycode\nimport torch\n" + b"\xff" * 500_000,
    "bom.py": b"\xef\xbb\xbf" + HEAD,
    "crlf.py": HEAD.replace(b"\n", b"\r\n"),
    "escape.py": HEAD + b"x = '\\d'\n",
    "python2.py": b"print 'torch'\n",
    "list.ipynb": b"[]",
    "cut.ipynb": b"{",
    "deep.ipynb": b"[" * 100_000,
    "old.ipynb": b'{"worksheets": []}',
    "odd.ipynb": b'{"cells": [1, null, {"cell_type": "code"}, {"cell_type": "code", "source": ["x = (", 3]}]}',
    "surrogate.ipynb": b'{"cells": [{"cell_type": "code", "source": "torch\\u0000 # \\ud800 x"}]}',
}
SAID = {
    "parens.py": ":3:201 syntax error: too many nested parentheses",
    "minus.py": ":1:1 is nested too deeply",
    "attributes.py": ":1:1 is nested too deeply",
    "sums.py": ":1:1 is nested too deeply",
    "null.py": ":3:1 is not a text: it has a null byte",
    "unnamed.py": ":2:6 is not UTF-8",
    "unknown.py": ":1:1 names an encoding that is unknown",
    "punycode.py": ":1:1 is not punycode",
    "python2.py": ":1:1 syntax error: Missing parentheses",
    "list.ipynb": ":1:1 is not a notebook",
    "cut.ipynb": ":1:2 is not a notebook: no JSON",
    "deep.ipynb": ":1:1 is not a notebook: nested too deeply",
    "old.ipynb": ":1:1 is a notebook of an old form",
    "surrogate.ipynb": ":cell 1:1:1 is not a text",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gets_one_clear_line(client, name):
    """Soon, and without a traceback; a file that is only odd has no problem."""
    (client.project / name).write_bytes(HOSTILE[name])
    begin = time.monotonic()
    done = client.run("check", "--fix")
    assert time.monotonic() - begin < 10  # about half a second on a free machine
    assert done.returncode == (1 if name in SAID else 0)
    lines = done.stdout.splitlines()
    assert len(lines) == (2 if name in SAID else 1)
    assert lines[0].startswith(f"{name}{SAID[name]}" if name in SAID else "1 file: no problems")
    assert (client.project / name).read_bytes() == HOSTILE[name]


def test_what_is_no_file_is_not_read(client):
    """A pipe, a device, a link that leads nowhere, a sparse file of 200 MB."""
    folder = client.project
    os.mkfifo(folder / "pipe.py")
    (folder / "zero.py").symlink_to("/dev/zero")
    (folder / "gone.py").symlink_to("nothing")
    (folder / "self.py").symlink_to("self.py")
    with (folder / "large.py").open("wb") as file:
        file.truncate(200 << 20)
    done = client.run("check")
    assert done.returncode == 1
    assert done.stdout.splitlines()[:-1] == [
        "gone.py:1:1 cannot be read: No such file or directory",
        "large.py:1:1 is larger than 1 MB: not checked",
        "pipe.py:1:1 is not a regular file: not read",
        "self.py:1:1 cannot be read: Too many levels of symbolic links",
        "zero.py:1:1 is not a regular file: not read",
    ]


def test_a_named_path_that_cannot_be_read_exits_with_2(client):
    """The others are checked."""
    os.mkfifo(client.project / "pipe.py")
    place(client, "a.py")
    done = client.run("check", "pipe.py", "a.py")
    assert done.returncode == 2
    assert "a.py:1:5 syntax error" in done.stdout


def test_a_name_with_control_characters_is_shown_without_them(client):
    """And one that is not UTF-8 is shown at all."""
    place(client, "a\n\x1b[31m.py", os.fsdecode(b"b\xff.py"))
    done = client.run("check")
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 3
    for form in ("--json", "--sarif"):
        json.loads(client.run("check", form).stdout)


def test_a_script_that_is_made_to_be_slow_ends_soon(client):
    """Alone and in a launch; a text that would grow to gigabytes is not followed."""
    grown = "".join(f"a{i + 1} = a{i}.replace('x', 'xxxxxxxxxxxxxxxx')\n" for i in range(12))
    client.script(f"import torch\na0 = 'x'\n{grown}torch.load(a12, map_location=a12)\n")
    assert client.run("check").returncode == 0
    tests = "".join("elif a: torch.load(x)\n" for _ in range(900))
    client.script(f"import torch\nif a: pass\n{tests}")
    done = client.run("check")
    assert done.returncode == 1
    assert "takes too long: not checked" in done.stdout or "900 problems" in done.stdout


def test_a_model_outside_the_folder_is_not_read(client):
    """A script may name any path."""
    (client.project.parent / "config.json").write_text('{"dtype": "bfloat16"}')
    client.script(
        "import torch\nfrom transformers import AutoModel, Trainer, TrainingArguments\n"
        "from peft import LoraConfig, get_peft_model\n"
        "m = get_peft_model(AutoModel.from_pretrained('..', dtype=torch.float16), LoraConfig())\n"
        "Trainer(model=m, args=TrainingArguments('o', fp16=True, logging_nan_inf_filter=False)).train()\n"
    )
    assert client.run("check").returncode == 0
