"""The pages of *Look up*, made from the code: models, errors, failure classes, profiles, and docs/json-schema.json."""

import json
import re
from collections.abc import Callable, Container
from enum import StrEnum
from typing import Any

from lookup.fields import Key, docstrings, keys, table, values
from lookup.variables import GIVEN, READ_HERE, READ_THERE
from pydantic import BaseModel
from testbed.client import REPOSITORY
from testbed.profiles import profiles

from launcher import errors
from launcher.agent.diagnosis.failures import FAILURES
from launcher.agent.diagnosis.remedy import TABLE, WAITS, Edit
from launcher.backends.kinds import PACKAGES, host_kind
from launcher.batch.input.batch_definition import BatchFile, BatchRun
from launcher.cli.signals import Terminated
from launcher.config.lookup import Project
from launcher.config.resolve import wheels
from launcher.config.trust import host_values
from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.planning.software.wheel_choice import TorchTarget, choose
from launcher.transport.local_variables import LISTED
from launcher.values.host import Host
from launcher.values.job import Job, objection_to
from launcher.values.profile import Profile
from launcher.values.states import Reason, State

DOCS = REPOSITORY / "docs"
WRITTEN = "<!-- Written from the code by `pytest tests/lookup --rewrite-cases`; do not edit. -->\n\n"
MORE = {
    "job.requirements": "environments.md#which-packages",
    "job.method": "precision.md#4-bit-base-qlora",
    "job.checkpointing": "precision.md#activation-checkpointing",
    "job.keep_checkpoints": "recovery-and-diagnosis.md#a-checkpoint-that-does-not-fit",
    "job.checkpoints": "recovery-and-diagnosis.md#checkpoints",
    "job.data.train": "your-own-script.md#models-and-data",
    "job.data.eval": "your-own-script.md#models-and-data",
    "job.settings.*": "precision.md#bf16-weights",
    "job.verify.*": "verifying.md",
    "job.writable": "your-own-script.md#large-files",
    "job.variables.*": "your-own-script.md#variables",
    "job.secrets": "your-own-script.md#secrets",
    "job.restart": "recovery-and-diagnosis.md#automatic-recovery",
    "job.hang_minutes": "recovery-and-diagnosis.md#hangs",
    "job.outputs": "coming-home.md",
    "job.inject": "your-own-script.md#the-start-up-hook",
    "job.adapt": "your-own-script.md#unmodified-with-adapt",
    "job.guard": "your-own-script.md#the-guard",
    "job.on_end": "following-and-stopping.md#notify-at-the-end",
    "job.slurm.*": "#a-slurm-cluster",
    "machine.root": "hosts.md#the-root-folder",
    "machine.runtime": "containers-and-images.md",
    "machine.build.base": "containers-and-images.md#build-options",
    "machine.variables": "variables.md#a-run-on-this-computer",
    "machine.hold": "hosts.md#the-next-command",
    "slurm.gres": "slurm.md#cards",
    "slurm.image": "slurm.md#in-an-image",
    "kaggle.datasets": "kaggle.md#large-data",
    "lambda-cloud.keep": "lambda.md#keep-the-machine",
    "batch.matrix.*": "batches.md#the-file",
    "profile.unified": "profiles.md#memory",
    "profile.memory_mib": "profiles.md#memory",
}
"""The section of a page that has more on a key."""
EXIT_CODES = {
    0: ("done, or you detached", ""),
    1: (
        "the run failed, or its state does not allow the command: `rm` of a running run, `resume` without a checkpoint",
        "the message; for a failed run `launch diagnose last`, `launch logs last`",
    ),
    2: ("a mistake on the command line or in a file", "the message; `launch --help`"),
    3: (
        "the checks refused the launch; nothing was sent. In `launch doctor`: something is lacking",
        "the end of the message; `launch --dry-run`",
    ),
    4: (
        "the host is unreachable or refuses the connection, or its rented machine is gone",
        "`launch doctor HOST`; for a rented machine, the message",
    ),
    5: ("interrupted or waiting; the run can continue", "`launch recover RUN`"),
    130: (
        "Ctrl-C before the run began, or in a command that waits. Not in `launch logs -f`, `ps --watch` and a followed run: these exit with 0",
        "after Ctrl-C in `launch stop`: `launch ps`. The run still ends if its host has the request",
    ),
    Terminated.exit_code: (
        "SIGTERM, which acts like Ctrl-C; a run that has begun continues",
        "`launch attach last`",
    ),
}


def keys_page() -> str:
    """Return the keys of every file that a person writes."""
    tables = [
        ("launch.toml", "In the project's folder. All keys are optional.", _project_keys()),
        *(_host_section(kind) for kind in PACKAGES),
        (
            "A job",
            "The file of `--job`; `--set KEY=VALUE` changes one key. See [jobs](jobs.md).",
            _rows("job", keys(Job)),
        ),
        *(_settings_section(name) for name in ("sft", "distill")),
        (
            "A batch",
            "The file of `launch batch`: these keys, and the keys of a run for all its runs. See [batches](batches.md).",
            _rows("batch", keys(BatchFile, skip=tuple(BatchRun.model_fields))),
        ),
        ("A run of a batch", "In `[[run]]`, or at the top for all runs.", _rows("run", keys(BatchRun))),
        (
            "A profile",
            "`profiles/NAME.toml`. See [your own profile](profiles.md#your-own-profile).",
            _rows("profile", keys(Profile)),
        ),
    ]
    start = "# Keys\n\nUnknown keys are errors. Where the default is empty, the key is unset; *required* keys have none.\n"
    return start + "".join(f"\n## {title}\n\n{intro}\n\n{rows}" for title, intro, rows in tables)


def _rows(section: str, found: list[Key]) -> str:
    """Return the table of a section's keys, each with a link to more."""
    rows = []
    for key in found:
        more = MORE.get(f"{section}.{key.name}")
        name = f"[`{key.name}`]({more})" if more else f"`{key.name}`"
        rows.append((name, *key[1:]))
    return table(("key", "values", "default", "meaning"), rows)


def _project_keys() -> str:
    meanings = docstrings(Project)
    rows = [(f"`{name}`", meanings[name]) for name in Project._fields]
    return table(("key", "meaning"), [*rows, ("`[hosts.NAME]`", "A host, of one of the kinds below.")])


def _host_section(kind: str) -> tuple[str, str, str]:
    """Return the section of a kind of host: its own keys, and the names of the machine's keys that it has too."""
    found = host_kind(kind)
    has = found.table.model_fields.keys() - {"name"}
    free = has - {
        name.rpartition(".")[2]
        for name in host_values("x", {**dict.fromkeys(has, ""), "kind": kind}, (), ("x",))
    }
    own: type[BaseModel] = found.settings or Host
    also = [name for name in Host.model_fields if name in has - own.model_fields.keys() - {"kind"}]
    intro = [
        f'A table `[hosts.NAME]` with `kind = "{kind}"`' if kind != "machine" else "A table `[hosts.NAME]`",
        f"; it also has the [machine's](#a-machine) {', '.join(f'`{one}`' for one in also)}" if also else "",
        f". In a project, all but {', '.join(f'`{one}`' for one in sorted(free))} need [trust](hosts.md#trust).",
    ]
    title = found.title[0].upper() + found.title[1:]
    own_first = sorted(keys(own, skip=("name",)), key=lambda key: key.name not in own.__annotations__)
    return title, "".join(intro), _rows(kind, own_first)


def _settings_section(name: str) -> tuple[str, str, str]:
    """Return the settings of an included job, with the comments of its file."""
    text = (REPOSITORY / "jobs" / f"{name}.toml").read_text().partition("[settings]\n")[2].partition("\n[")[0]
    rows = []
    for line in filter(None, text.splitlines()):
        found = re.fullmatch(r"(\w+) = (.+?)\s+# (.+)", line)
        assert found, f"jobs/{name}.toml: a setting needs a comment: {line}"
        rows.append((f"`settings.{found[1]}`", f"`{found[2]}`", found[3]))
    return (
        f"Settings of {name}",
        f"Of the job [{name}](jobs.md#{name}).",
        table(("key", "default", "meaning"), rows),
    )


def variables_page() -> str:
    """Return the variables that launch reads, those of a run's processes, and those that a run inherits here."""
    set_by_launch = [name for name in GIVEN if objection_to(name.rstrip("*")) is not None]
    inherited = [(title, " ".join(f"`{name}`" for name in names.split())) for title, names in LISTED.items()]
    return (
        "# Environment variables\n\n## Read on this computer\n\n"
        + _variables(READ_HERE)
        + "\n## Read on the host\n\nFrom your login there.\n\n"
        + _variables(READ_THERE)
        + "\n## Set for a run\n\nA job can set all of them but "
        + ", ".join(f"`{name}`" for name in set_by_launch)
        + ". [Variables](your-own-script.md#variables) says how a run gets others.\n\n"
        + _variables(GIVEN)
        + "\n## A run on this computer\n\nIt inherits these of your shell; `*` stands for any ending. Proxies count in capitals too.\n\n"
        + table(("", "names"), inherited)
        + "\nNames that look like a credential's are left out even if they match: `HF_TOKEN`, `NVIDIA_API_KEY`, `SLURM_JWT`. "
        '`variables = "inherit"` of [the host](keys.md#a-machine) passes all.\n'
    )


def _variables(found: dict[str, str]) -> str:
    return table(("variable", "meaning"), [(f"`{name}`", meaning) for name, meaning in found.items()])


def exit_codes_page() -> str:
    """Return the exit codes, and the cases of each from the error tree."""
    codes = [(str(code), *words) for code, words in sorted(EXIT_CODES.items())]
    cases = dict.fromkeys((str(one.exit_code), _case(one)) for one in _errors(errors.LaunchError))
    in_order = sorted(cases, key=lambda case: case[0])
    return (
        "# Exit codes\n\n"
        + table(("code", "meaning", "look at"), codes)
        + "\nA dry run that prints `would refuse` exits with 3, as the launch would. `launch exec` and `launch shell` exit with the code of their command: "
        "128 + signal, 127 if the program does not exist, 126 if it cannot be executed, 4 if the link is lost, 1 if the run was removed. "
        "`launch batch` has [its own table](batches.md#exit-codes). [Troubleshooting](troubleshooting.md) has examples.\n"
        "\n## Cases\n\n" + table(("code", "when"), in_order)
    )


def _errors(top: type[errors.LaunchError]) -> list[type[errors.LaunchError]]:
    """Return the errors below one, with their own."""
    below = [one for one in top.__subclasses__() if one.__module__ == errors.__name__]
    return [found for one in below for found in (one, *_errors(one))]


def _case(error: type[errors.LaunchError]) -> str:
    """Return the first sentence of an error's docstring, without its verb."""
    sentence = " ".join((error.__doc__ or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    found = re.fullmatch(r"Raised (?:when|for|if) (.+)", sentence)
    assert found, f"{error.__name__}: its docstring begins with 'Raised when'"
    return found[1]


def failures_page() -> str:
    """Return every class of failure, with the answer of the agent; and the other reasons and states of a run."""
    rows = [(f"`{one.name}`", one.why, one.mend, _answer(one.name)) for one in FAILURES]
    return (
        "# Failure classes\n\n`launch diagnose` prints these for a run or a log, see [recovery and diagnosis](recovery-and-diagnosis.md). *Automatic*: "
        "the agent's [answer](recovery-and-diagnosis.md#automatic-recovery); the counts start again after each checkpoint. "
        "Without one, the run ends.\n\n"
        + table(("class", "it means", "fix", "automatic"), rows)
        + "\n## Other reasons\n\nA state such as `failed: never-started` has one of these reasons, or a class.\n\n"
        + _words_of(Reason, "reason", known={one.name for one in FAILURES})
        + "\n## States\n\n"
        + _words_of(State, "state")
    )


def _words_of(words: type[StrEnum], head: str, known: Container[str] = ()) -> str:
    """Return the table of a set of words, without the known ones. Raises AssertionError for one without a docstring."""
    meanings = docstrings(words)
    rows = []
    for one in words:
        if one not in known:
            assert one.name in meanings, f"{words.__name__}.{one.name} needs a docstring below it"
            rows.append((f"`{one}`", meanings[one.name]))
    return table((head, "it means"), rows)


def _answer(name: str) -> str:
    """Return the agent's answer to a class: its edit, and what the run then waits for."""
    edit, wait = TABLE.get(name), WAITS.get(name)
    words = [_edit(edit)] if edit else []
    if wait:
        words.append(f"[waits](recovery-and-diagnosis.md#waiting-runs): {wait}")
    return "; then ".join(filter(None, words))


def _edit(edit: Edit) -> str:
    """Return an edit in words: those of its function, or those that the run's record gets."""
    if edit.find.__name__ == "<lambda>":
        change = edit.find(None)  # type: ignore[arg-type]
        words = f"a new attempt {change[1].removeprefix('a new attempt')}".strip() if change else ""
    else:
        words = " ".join((edit.find.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
        assert words, f"{edit.find.__name__} needs a docstring"
        words = words[0].lower() + words[1:]
    return f"{words} (at most {edit.most} times)".replace("most 1 times", "most once") if edit.most else words


def cards_page() -> str:
    """Return every profile, ordered by capability, with what follows from it."""
    found = sorted(
        profiles().values(), key=lambda one: (one.kind != "cuda", one.compute or (0, 0), one.memory_gb or 0)
    )
    rows = []
    for one in found:
        first = {method: ladder(LadderInputs(one, method)).rungs[0].title for method in ("lora", "full")}
        torch = choose(wheels(), TorchTarget(one))
        build = f"{torch.torch}+{torch.build}" if torch.build else torch.torch
        memory = f"{one.memory_mib:,.0f}" if one.memory_mib else ""
        rows.append((f"`{one.name}`", one.title, one.capability or "", memory, *first.values(), build))
    head = ("profile", "card", "capability", "MiB", "LoRA", "full", "torch")
    return (
        "# Cards\n\nThe included [profiles](profiles.md). *LoRA* and *full* are the first [precision](precision.md) of such a training; "
        "*torch* is the build in [images](containers-and-images.md) and environments if the job names none and the driver is unknown. "
        "`launch explain --profile NAME` shows all precisions, `launch image show --profile NAME` the image.\n\n"
        + table(head, rows)
    )


def json_page() -> str:
    """Return the objects that `--json` prints, and their parts, from the schema."""
    schema = json.loads((DOCS / "json-schema.json").read_text())
    names = [one["$ref"].rpartition("/")[2] for one in schema["anyOf"]]
    defs: dict[str, Any] = schema["$defs"]
    titles = {
        name: defs[name]["properties"]["kind"].get("const", "events") if name in names else name
        for name in defs
    }
    kinds = sorted(names, key=titles.__getitem__)
    parts = sorted(defs.keys() - {*names})
    overview = [
        (f"[`{titles[one]}`](#{titles[one]})", _words(defs[one]).partition(". ")[0].rstrip("."))
        for one in kinds
    ]
    return (
        "# JSON\n\nEvery object of `--json` begins with `version` and `kind`. A kind always has the same keys. "
        "[json-schema.json](json-schema.json) has the same for programs, [records and JSON](records-and-json.md#-json) examples.\n\n"
        + table(("kind", "content"), overview)
        + "\n## Kinds\n"
        + "".join(_object(titles[one], defs[one]) for one in kinds)
        + "\n## Types\n"
        + "".join(_object(f"type {one}", defs[one]) for one in parts)
    )


def _words(definition: dict[str, Any]) -> str:
    return " ".join(definition.get("description", "").split())


def _object(title: str, definition: dict[str, Any]) -> str:
    rows = [
        (f"`{name}`", values(one))
        for name, one in definition.get("properties", {}).items()
        if name not in ("version", "kind") or "const" not in one
    ]
    return f"\n### {title}\n\n{_words(definition)}\n\n" + (table(("key", "value"), rows) if rows else "")


PAGES: dict[str, Callable[[], str]] = {
    "keys.md": keys_page,
    "variables.md": variables_page,
    "exit-codes.md": exit_codes_page,
    "json.md": json_page,
    "cards.md": cards_page,
    "failure-classes.md": failures_page,
}
