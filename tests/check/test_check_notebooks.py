"""Notebooks: their cells are checked as one program, and mended with all else byte-identical."""

import json

import pytest

CELLS = [
    ("markdown", "# Fine-tune \u00e9\n"),
    (
        "code",
        "%matplotlib inline\n!pip install x \\\n   y\nimport torch\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments",
    ),
    ("code", "%%bash\necho if\n"),
    ("code", ""),
    (
        "code",
        "%%time\nfiles = !ls\nmodel = AutoModelForCausalLM.from_pretrained('n', dtype=torch.float16)  # \u00e9\nmodel?\nif files:\n    %time\ntext = '\\\n%not magic'",
    ),
    (
        "code",
        "Trainer(model=model, args=TrainingArguments('o', fp16=True, logging_nan_inf_filter=False)).train()",
    ),
]


def notebook(cells=CELLS, *, is_list=True, **more):
    """A notebook in the form of Jupyter, as text."""
    written = [
        {
            "cell_type": kind,
            "metadata": {},
            **({"execution_count": None, "outputs": []} if kind == "code" else {}),
            "source": text.splitlines(keepends=True) if is_list else text,
        }
        for kind, text in cells
    ]
    data = {
        "cells": written,
        "metadata": {"kernelspec": {"language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(data, **{"indent": 1, "ensure_ascii": False, **more}) + "\n"


def test_a_problem_is_named_by_cell_and_line(client):
    """Magic lines, shell lines and cells of other languages are skipped."""
    client.script(notebook(), "nb.ipynb")
    done = client.run("check")
    assert done.returncode == 1
    assert done.stdout.startswith("nb.ipynb:cell 5:3:57 LC101 ")
    assert done.stdout.endswith("1 problem in 1 of 1 file; 1 can be mended   launch check --fix\n")


@pytest.mark.parametrize("is_list", [True, False])
@pytest.mark.parametrize(
    "form",
    [{}, {"indent": 4}, {"indent": None}, {"ensure_ascii": True}, {"indent": None, "separators": (",", ":")}],
    ids=str,
)
def test_fix_changes_the_bytes_of_the_finding_alone(client, form, is_list):
    """In any layout of the JSON."""
    text = notebook(is_list=is_list, **form)
    client.script(text, "nb.ipynb")
    assert client.run("check", "--fix").returncode == 0
    assert (client.project / "nb.ipynb").read_text() == text.replace("float16", "float32")


def test_a_mistake_in_a_cell_is_told_and_the_others_are_checked(client):
    """With the place in its cell."""
    client.script(notebook([*CELLS, ("code", "x = 1\ny = (")]), "nb.ipynb")
    lines = client.run("check").stdout.splitlines()
    assert lines[0].startswith("nb.ipynb:cell 5:3:57 LC101")
    assert lines[2].startswith("nb.ipynb:cell 7:2:5 syntax error")


def test_a_notebook_of_another_language_has_no_problem(client):
    """Its cells are no Python."""
    text = notebook([("code", "x = (")]).replace('"python"', '"julia"')
    client.script(text, "nb.ipynb")
    assert client.run("check").returncode == 0


def test_an_ignored_problem_in_a_cell_is_hidden(client):
    """By the same comment."""
    client.script(notebook().replace("# \u00e9", "# launch: ignore[LC101]"), "nb.ipynb")
    assert client.run("check").returncode == 0


def test_sarif_of_a_notebook_names_the_cell(client):
    """A line of the cell is none of the file, so it has no region and no fix."""
    client.script(notebook(), "nb.ipynb")
    (result,) = json.loads(client.run("check", "--sarif").stdout)["runs"][0]["results"]
    (where,) = result["locations"]
    assert where["logicalLocations"] == [{"fullyQualifiedName": "cell 5:3:57"}]
    assert "region" not in where["physicalLocation"]
    assert "fixes" not in result


@pytest.mark.parametrize(
    ("line", "code"), [("!pip install -q transformers==4.40.0", 0), ("%pip install transformers", 1)]
)
def test_what_a_notebook_installs_counts(client, line, code):
    """An argument that the installed version has is no problem."""
    asks = "from transformers import TrainingArguments\nTrainingArguments('o', evaluation_strategy='steps')"
    client.script(notebook([("code", f"{line}\nimport torch"), ("code", asks)]), "asks.ipynb")
    assert client.run("check", "asks.ipynb").returncode == code
