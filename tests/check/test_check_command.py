"""`launch check`: what it prints, how it exits, and what --fix changes."""

import ast
import json
import os
import shutil
import signal
import stat
import subprocess

import pytest

BAD = """import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("name", dtype=torch.float16)  # kept: \u00e9
arguments = TrainingArguments("out", fp16=True, logging_nan_inf_filter=False)
Trainer(model=model, args=arguments, train_dataset=[]).train()
"""
GOOD = BAD.replace("float16", "float32")


def check(client, *words):
    """Run `launch check`; return its exit code and both outputs."""
    done = client.run("check", *words)
    return done.returncode, done.stdout, done.stderr


def test_a_problem_has_its_place_its_code_and_its_mend(client):
    """And the last line has the command that mends it."""
    client.script(BAD)
    code, out, _ = check(client, "train.py")
    first, mend, last = out.splitlines()
    assert code == 1
    assert first.startswith("train.py:4:60 LC101 ")
    assert mend.startswith("  mend  ")
    assert mend.endswith("  [--fix]")
    assert last == "1 problem in 1 of 1 file; 1 can be mended   launch check --fix train.py"


def test_columns_are_characters(client):
    """Not bytes of UTF-8, and a byte order mark has no column."""
    client.script(
        "\ufeff" + BAD.replace('"name"', '"n\u00e4\u00e4e"').replace("import torch\n", "import torch; ", 1)
    )
    assert check(client)[1].startswith("train.py:3:60 LC101 ")


def test_nothing_found_exits_with_0(client):
    """Also for a folder without Python."""
    assert check(client)[0] == 0
    client.script(GOOD)
    assert check(client)[:2] == (0, "1 file: no problems\n")


def test_a_comment_hides_a_problem(client):
    """Of its code alone."""
    for name in ("LC101", "LC303, LC101", "fp16-trainables"):
        client.script(BAD.replace("# kept", f"# launch: ignore[{name}] kept"))
        assert check(client)[0] == 0
    client.script(BAD.replace("# kept", "# launch: ignore[LC999]"))
    assert check(client)[0] == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--select", "LC1"), 1),
        (("--select", "fp16-trainables"), 1),
        (("--ignore", "LC101"), 0),
        (("--select", "LC101", "--ignore", "LC1"), 1),
        (("--select", "LC1", "--ignore", "lc101"), 0),
    ],
)
def test_rules_are_chosen_as_with_ruff(client, words, code):
    """By code, beginning or name; the longer word counts."""
    client.script(BAD)
    assert check(client, *words)[0] == code


@pytest.mark.parametrize(
    "words",
    [
        ("nope.py",),
        ("--select", "LX1"),
        ("--explain", "LC10x"),
        ("--profile", "titan_rx"),
        ("--fix", "--diff"),
        ("--json", "--sarif"),
        ("--diff", "--json"),
    ],
)
def test_a_mistake_on_the_command_line_exits_with_2(client, words):
    """And prints nothing on standard output."""
    code, out, err = check(client, *words)
    assert (code, out) == (2, "")
    assert err


def test_an_unknown_rule_or_profile_names_the_nearest(client):
    """So that it can be typed."""
    assert "did you mean 'LC601'?" in check(client, "--explain", "LC701")[2]
    assert "did you mean 'fp16-trainables'?" in check(client, "--explain", "fp16_trainable")[2]
    assert "did you mean 'titan_rtx'?" in check(client, "--profile", "titan_rx")[2]


def test_a_rule_is_explained_by_code_and_by_name(client):
    """With its example; in JSON too."""
    by_code = check(client, "--explain", "lc101")[1]
    assert by_code == check(client, "--explain", "fp16-trainables")[1]
    assert "instead of" in by_code
    assert json.loads(check(client, "--explain", "LC101", "--json")[1])["code"] == "LC101"


# --fix


def test_fix_changes_the_finding_alone_and_is_idempotent(client):
    """Bytes around it, the permissions and a link stay; line ends too."""
    real = client.project / "real.py"
    real.write_bytes(BAD.replace("\n", "\r\n").encode())
    real.chmod(0o751)
    (client.project / "train.py").symlink_to("real.py")
    code, out, _ = check(client, "--fix", "train.py")
    assert (code, out) == (0, "Mended 1 problem in 1 file.\n1 file: no problems\n")
    assert real.read_bytes() == GOOD.replace("\n", "\r\n").encode()
    assert stat.S_IMODE(real.stat().st_mode) == 0o751
    assert (client.project / "train.py").is_symlink()
    before = real.stat().st_mtime_ns
    assert check(client, "--fix", "train.py")[:2] == (0, "1 file: no problems\n")
    assert real.stat().st_mtime_ns == before
    assert not list(client.project.glob("*.part"))


def test_fix_mends_a_module_that_a_script_imports(client):
    """Once, although two scripts import it; the scripts stay as they are."""
    lines = BAD.splitlines(keepends=True)
    client.script("".join(lines[:4]), "model_of.py")
    script = "".join(lines[:2]) + "from model_of import model\n" + "".join(lines[4:])
    client.script(script, "one.py")
    client.script(script, "two.py")
    code, out, _ = check(client, "one.py", "two.py")
    assert code == 1
    assert [line for line in out.splitlines() if "LC101" in line] == [out.splitlines()[0]]
    assert out.startswith("model_of.py:4:60 LC101")
    assert check(client, "--fix", "one.py", "two.py")[0] == 0
    assert (client.project / "model_of.py").read_text() == GOOD[: len("".join(lines[:4]))]
    assert (client.project / "one.py").read_text() == script


def test_a_file_of_another_encoding_is_checked_and_never_written(client):
    """Its characters are those of its own encoding."""
    data = ("# coding: latin-1\n" + BAD).encode("latin-1")
    (client.project / "train.py").write_bytes(data)
    code, out, _ = check(client, "--fix")
    assert code == 1
    assert "[--fix]" not in out
    assert (client.project / "train.py").read_bytes() == data


def test_diff_shows_what_fix_would_change(client):
    """As a patch that applies, and changes nothing itself."""
    client.script(BAD.rstrip("\n"))
    code, out, err = check(client, "--diff")
    assert (code, err) == (1, "Would mend 1 problem in 1 file.\n")
    assert (client.project / "train.py").read_text() == BAD.rstrip("\n")
    if shutil.which("patch"):
        subprocess.run(["patch", "-s", "-p0"], cwd=client.project, input=out, text=True, check=True)
        assert (client.project / "train.py").read_text() == GOOD.rstrip("\n")
    assert check(client, "--fix")[0] == 0
    assert check(client, "--diff")[:2] == (0, "")


def test_a_file_that_cannot_be_written_is_named(client):
    """The others are mended."""
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("root may write everything")
    (client.project / "shut").mkdir()
    client.script(BAD, "shut/train.py")
    client.script(BAD)
    (client.project / "shut").chmod(0o555)
    code, out, _ = check(client, "--fix")
    (client.project / "shut").chmod(0o755)
    assert code == 1
    assert "shut/train.py: cannot be written: Permission denied" in out
    assert (client.project / "train.py").read_text() == GOOD


# many files


def test_many_files_are_checked_in_processes_alike(client):
    """With the same problems in the same order, and mended alike."""
    for number in range(90):
        client.script(BAD if number % 10 == 0 else GOOD, f"train{number:02}.py")
    code, out, _ = check(client)
    assert code == 1
    assert [line.split(":")[0] for line in out.splitlines() if "LC101" in line] == [
        f"train{number:02}.py" for number in range(0, 90, 10)
    ]
    assert out.endswith("9 problems in 9 of 90 files; 9 can be mended   launch check --fix\n")
    assert check(client, "--fix")[1] == "Mended 9 problems in 9 files.\n90 files: no problems\n"
    assert all(ast.parse(path.read_bytes()) for path in client.project.glob("*.py"))


def test_ctrl_c_ends_it_with_its_processes(client):
    """No process is left, and no traceback of theirs is shown."""
    for number in range(400):
        client.script(GOOD + "x = [1, 2, 3]\n" * 3000, f"train{number}.py")
    process = client.start("check")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in err or "many_files" in err


# forms


def test_sarif_has_rules_results_and_fixes(client):
    """A file that cannot be checked is a notification."""
    client.script(BAD)
    client.script("x = (", "wrong file.py")
    code, out, _ = check(client, "--sarif")
    (run,) = json.loads(out)["runs"]
    (result,) = run["results"]
    assert code == 1
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "LC101"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "train.py", "uriBaseId": "SRCROOT"}
    assert place["region"] == {"startLine": 4, "startColumn": 60, "endLine": 4, "endColumn": 73}
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["replacements"][0]["insertedContent"] == {"text": "torch.float32"}
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "wrong%20file.py"


def test_json_has_the_changes(client):
    """With places for an editor."""
    client.script(BAD)
    (problem,) = json.loads(check(client, "--json")[1])["problems"]
    (change,) = problem["changes"]
    assert change["text"] == "torch.float32"
    assert change["region"] == {"cell": None, "line": 4, "column": 60, "end_line": 4, "end_column": 73}


def test_colours_mark_the_place_and_the_code(client):
    """If they are asked for; without them the text is the same."""
    client.script(BAD)
    plain, coloured = check(client)[1], check(client, "--color", "always")[1]
    assert "\x1b[" in coloured
    import re

    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
