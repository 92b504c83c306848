"""The house: what imports what, what every public name carries, what travels, and what a quick command may load."""

import ast
import functools
import json
import re
import subprocess
import sys
import tomllib

import pytest
from testbed.client import REPOSITORY
from typer.main import get_command

from launcher.base.toml import read_toml
from launcher.cli.app import DEFAULT, whole_app
from launcher.values.parsing import build
from launcher.values.profile import Profile

PACKAGE = REPOSITORY / "launcher"
ROOMS = [
    "errors",
    "base",
    "values",
    "planning",
    "check",
    "transport",
    "config",
    "rental",
    "copy",
    "upload",
    "metrics",
    "backends",
    "runs",
    "compare",
    "verify",
    "drill",
    "batch",
    "cli",
]
"""The rooms of the client, the lowest first: each imports only from itself and from those before it."""
TABLE = "launcher.backends.kinds"
"""By it every room finds a kind of host or a runtime by its name; what it names is loaded when it is used."""
WINGS = [
    "record",
    "system",
    "logs",
    "diagnosis",
    "liveness",
    "store",
    "cards",
    "making",
    "host",
    "attempt",
    "training",
    "serving",
    "verbs",
    "segment",
    "slurm",
]
"""The folders of `agent/`, the lowest first: each imports only from itself and from those before it."""
HEAVY = {"fabric", "paramiko", "docker", "torch", "matplotlib"}
VARIABLES = {
    "LAUNCH_ARTIFACTS",
    "LAUNCH_COMMIT",
    "LAUNCH_DIRTY",
    "LAUNCH_ATTEMPT",
    "LAUNCH_SOCKET",
    "LAUNCH_STACKS",
    "LAUNCH_HOOK",
    "LAUNCH_RUN",
    "LAUNCH_TOKEN",
    "LAUNCH_EXEC",
    "LAUNCH_KEEPER",
    "LAUNCH_ADOPTER",
    "LAUNCH_SEEN",
    "LAUNCH_SLURM",
    "LAUNCH_HOST_ID",
    "LAUNCH_CODE",
    "LAUNCH_RUNS",
    "LAUNCH_TRUST",
    "LAUNCH_UMASK",
    "LAUNCH_CORE_LIMIT",
    "LAUNCH_SEGMENT",
    "LAUNCH_KAGGLE_INPUT",
    "LAUNCH_KAGGLE_WORKING",
}

SOURCES = sorted(PACKAGE.rglob("*.py"))
WORKER = [path for path in SOURCES if path.relative_to(PACKAGE).parts[0] == "worker"]
AGENT = [path for path in SOURCES if path.relative_to(PACKAGE).parts[0] == "agent"]
REMOTE = [*AGENT, *WORKER]


def ids(path):
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else path.name


@functools.cache
def parsed(path):
    """The syntax tree of a file. No test changes it."""
    return ast.parse(path.read_text())


def nodes_of(tree, *, types_too=True):
    """Every node of a syntax tree; without `types_too`, none of what stands under TYPE_CHECKING."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        hides = not types_too and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        pending += node.orelse if hides else ast.iter_child_nodes(node)


@functools.cache
def imports(path, *, types_too=True):
    """Every module that a file imports, anywhere in it, by its absolute dotted name."""
    package = ["launcher", *path.relative_to(PACKAGE).parent.parts]
    names = set()
    for node in nodes_of(parsed(path), types_too=types_too):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names.update((module, *(f"{module}.{alias.name}" for alias in node.names)))
    return frozenset(names)


def module_of(path):
    return ".".join(["launcher", *path.relative_to(PACKAGE).with_suffix("").parts])


@functools.cache
def graph():
    """Which files import which others when they run, by module; a package stands for its `__init__`."""
    modules = {module_of(path).removesuffix(".__init__"): module_of(path) for path in SOURCES}
    return {
        module_of(path): {modules[name] for name in imports(path, types_too=False) if name in modules}
        - {module_of(path)}
        for path in SOURCES
    }


def reachable(path):
    """Every module that a file leads to by its imports, wherever they stand."""
    reached, pending = set(), list(graph()[module_of(path)])
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += graph()[name]
    return reached


def floor(module):
    """The floor of a module of ours: 0 for what stands below all others."""
    word = module.split(".")[1] if "." in module else module
    if module.startswith(TABLE):
        return ROOMS.index("values")
    return ROOMS.index(word) if word in ROOMS else 0


def of_each(things):
    """Make a check of one thing a test of all of them: each that fails is named. One test costs less than a thousand."""

    def make(check):
        def test():
            failures = []
            for one in things:
                try:
                    check(one)
                except AssertionError as error:
                    failures.append(f"{one if isinstance(one, str) else ids(one)}: {error}")
            assert not failures, "\n".join(failures)

        test.__doc__ = check.__doc__
        return test

    return make


@of_each([path for path in SOURCES if path not in REMOTE])
def test_imports_point_down_only(path):
    """A room imports from those before it in ROOMS, wherever in the file an import stands."""
    own = ".".join(["launcher", *path.relative_to(PACKAGE).with_suffix("").parts])
    ours = {name for name in imports(path) if name.split(".")[0] == "launcher"}
    assert not {name for name in ours if floor(name) > floor(own)}
    if own in ("launcher.errors", "launcher.base.resources", "launcher.__init__"):
        assert not ours
    # These rooms share code with the agent: both ends of a channel, a spool or a lock must agree, and `check`
    # knows the changes of libraries that the agent's diagnosis knows.
    if not own.startswith(
        ("launcher.transport.", "launcher.rental.", "launcher.backends.", "launcher.base.", "launcher.check.")
    ):
        assert not {name for name in ours if name.startswith("launcher.agent")}


@of_each([path for path in SOURCES if "providers" not in path.parts])
def test_no_module_names_a_provider_of_rented_machines(path):
    """It is found by its line in the registry. Its backend knows its settings, and nothing else of it."""
    named = {name for name in imports(path) if name.startswith("launcher.rental.providers.")}
    if "backends" in path.parts:
        named = {name for name in named if not name.split(".")[3].endswith("_settings")}
    assert not named


def front_door(room):
    """The modules of a room that others may import, by its `__init__`; None if all of them."""
    for node in parsed(PACKAGE / room / "__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FRONT_DOOR":
            return {f"launcher.{room}.{name}" for name in ast.literal_eval(node.value)}
    return None


@pytest.mark.parametrize(
    "room", [room for room in ROOMS if room != "errors" and front_door(room)] + ["agent"]
)
def test_a_room_is_entered_by_its_front_door(room):
    """Other rooms import the modules that its `__init__` names, each of which somebody needs, and no other."""
    inside = {module_of(path) for path in SOURCES if path.relative_to(PACKAGE).parts[0] == room}
    used = {
        name
        for path in SOURCES
        if path.relative_to(PACKAGE).parts[0] not in (room, "worker")
        for name in imports(path)
        if name in inside
    }
    assert used == front_door(room)


@of_each(AGENT)
def test_the_agent_imports_itself_and_the_standard_library_alone(path):
    """The agent runs on a bare host. Its wings import downward only; `main` alone finds a verb's module by name."""
    inside = {name for name in imports(path) if name.split(".")[0] == "launcher"}
    assert {".".join(name.split(".")[:2]) for name in inside} <= {"launcher.agent"}
    assert {name.split(".")[0] for name in imports(path)} <= {"launcher", *sys.stdlib_module_names}
    used = {name.split(".")[2] for name in inside if len(name.split(".")) > 2}
    wing = path.relative_to(PACKAGE).parts[1]
    if wing in ("main.py", "compiled_code.py", "__init__.py"):
        assert not used
    else:
        assert used <= set(WINGS[: WINGS.index(wing) + 1])


@of_each(SOURCES)
def test_no_module_imports_itself_by_a_detour(path):
    """Nothing that a module imports, also inside its functions, leads back to it."""
    assert module_of(path) not in reachable(path)


def imports_when_loaded(path):
    """Every module that a file imports outside its functions."""
    pending = list(parsed(path).body)
    while pending:
        node = pending.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{'.' * node.level}{node.module or ''}"


def test_the_worker_is_one_package():
    """One folder on PYTHONPATH makes one name importable, and nothing else."""
    assert {path.relative_to(PACKAGE).parts[1] for path in WORKER} == {"launcher_worker"}
    assert PACKAGE / "worker" / "launcher_worker" / "__main__.py" in WORKER


@of_each(WORKER)
def test_the_worker_asks_for_torch_and_its_kin_inside_the_functions_that_need_it(path):
    """When imported, each module of it needs itself and the standard library alone."""
    names = {name.split(".")[0] for name in imports_when_loaded(path) if not name.startswith(".")}
    assert names <= set(sys.stdlib_module_names)


@of_each(WORKER)
def test_the_worker_finds_its_own_modules_relative_to_itself(path):
    """No module of it imports `launcher` or itself by an absolute name, so nothing else of that name is mixed in."""
    tree = ast.walk(parsed(path))
    absolute = {node.module or "" for node in tree if isinstance(node, ast.ImportFrom) and not node.level}
    assert not {name for name in absolute if name.startswith("launcher")}
    assert "launcher_worker" not in imports(path)


def test_heavy_libraries_have_one_home_each():
    """fabric, paramiko and invoke in transport/ssh/, docker in its runtime, torch in the worker: nowhere else in the package."""
    homes = {
        "fabric": "transport/ssh",
        "paramiko": "transport/ssh",
        "invoke": "transport/ssh",
        "docker": "backends/machine/docker",
        "torch": "worker",
    }
    strays = [
        (ids(path), name)
        for path in SOURCES
        for name in map(str, imports(path))
        if name.split(".")[0] in homes and not ids(path).startswith(homes[name.split(".")[0]])
    ]
    assert not strays
    assert any("paramiko" in imports(path) for path in SOURCES), "the check sees imports"


def public(body, owner=""):
    """Every public class, function and method below a syntax tree's body."""
    for node in body:
        if isinstance(
            node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and not node.name.startswith("_"):
            yield f"{owner}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{owner}{node.name}.")


def missing_annotations(node):
    spec = node.args
    found = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *filter(None, (spec.vararg, spec.kwarg))]
    bare = [one.arg for one in found if one.annotation is None and one.arg not in ("self", "cls")]
    return bare + (["return"] if node.returns is None else [])


@of_each(SOURCES)
def test_every_public_name_has_a_sentence_and_full_annotations(path):
    """A first line that ends, and a type for every argument and answer; methods of Protocols too."""
    for name, node in public(parsed(path).body):
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        assert first.endswith((".", "?", "!", ":")), f"{name}: {first!r}"
        if not isinstance(node, ast.ClassDef):
            assert not missing_annotations(node), name


@of_each(SOURCES)
def test_every_module_with_code_begins_with_a_sentence(path):
    """The first thing in a file says what it is for."""
    tree = parsed(path)
    assert not tree.body or (ast.get_docstring(tree) or "").partition("\n")[0].rstrip()


@of_each(REMOTE)
def test_what_travels_is_python_3_8(path):
    """No syntax that a host's Python 3.8 would refuse."""
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize(
    "words", [["--help"], ["profile", "list"], ["--version"], ["ps", "--help"]], ids=" ".join
)
def test_quick_commands_load_no_heavy_library(words, tmp_path):
    """Help and listings answer without fabric, paramiko, docker, torch or matplotlib."""
    code = (
        "import json, sys\n"
        f"sys.argv = ['launch', *{words!r}]\n"
        "from launcher.cli import main\ntry:\n    main()\n"
        "finally:\n    print('\\n' + json.dumps([name for name in sys.modules if '.' not in name]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "launcher" in loaded
    assert not loaded & HEAVY


def test_nothing_in_the_package_exists_for_tests():
    """No word of pytest, no testbed, no switch in the environment beyond those that people and scripts use."""
    for path in SOURCES:
        text = path.read_text()
        words = ("pytest", "TESTBED", "hypothesis", *(() if path.stem == "lean_invoke" else ("unittest",)))
        assert not [word for word in words if word in text], ids(path)
        assert set(re.findall(r"\bLAUNCH_[A-Z_]+", text)) <= VARIABLES, ids(path)


def test_beside_a_training_the_wall_clock_is_for_records_alone():
    """A clock that jumps changes no decision of agent or worker: what is waited for is measured by the other one."""
    beside = [
        path
        for path in AGENT
        if path.parent.name in ("attempt", "training", "diagnosis", "logs")
        or path.stem in ("checkpoints", "rundir")
    ]
    for path in (*beside, *WORKER):
        lines = [line for line in path.read_text().splitlines() if "time.time()" in line]
        allowed = ('"time": time.time()', "# after a reboot no other clock is left")
        assert all(any(one in line for one in allowed) for line in lines), path


def test_the_wheel_carries_the_data_inside_the_package_and_the_worker_at_the_top():
    """A wheel never puts `profiles`, `jobs` or `images` beside other people's modules."""
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert wheel["sources"] == {
        "profiles": "launcher/profiles",
        "jobs": "launcher/jobs",
        "images": "launcher/images",
        "launcher/worker": "",
    }
    assert set(wheel["only-include"]) == {"launcher", "profiles", "jobs", "images"}
    assert all((REPOSITORY / name).is_dir() for name in wheel["only-include"])


@of_each(sorted((REPOSITORY / "profiles").glob("*.toml")))
def test_every_profile_builds_and_is_called_as_its_file(path):
    """A profile of ours is a valid one, under the name that people write."""
    data, text = read_toml(path)
    assert build(Profile, data, file=path.name, text=text).name == path.stem


def verbs(command, words=()):
    """Every command below a group that can be called, with the words that call it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        return {" ".join(words): command}
    found = {}
    for name, one in inner.items():
        found |= verbs(one, (*words, *([] if name == DEFAULT else [name])))
    return found


VERBS = verbs(get_command(whole_app()))


def test_the_walk_over_the_verbs_finds_them():
    """The tests below are not vacuous: the launch itself, a verb, and a verb in a group are seen."""
    assert {"", "ps", "profile list"} <= VERBS.keys()


@of_each(VERBS)
def test_every_verb_has_help_with_an_example(name):
    """What `--help` says begins with a sentence and shows a line to paste."""
    text = (VERBS[name] if name else get_command(whole_app())).help or ""
    assert text.partition("\n")[0].rstrip(".") != text.partition("\n")[0]
    assert f"launch {name}".rstrip() in text.partition("\n")[2]


@of_each(VERBS)
def test_every_option_of_every_verb_is_explained(name):
    """No option or argument is shown without a word on what it does."""
    shown = [one for one in VERBS[name].params if not getattr(one, "hidden", False)]
    assert not [one.name for one in shown if not getattr(one, "help", None)]


ASK_NO_HOST = {
    *("check", "offers", "trust", "profile list", "image show"),
    *("batch status", "batch rm", "batch list"),
}


@of_each(VERBS)
def test_every_verb_has_the_common_options(name):
    """Colours, details, and, where a host is asked, a new host key."""
    options = {word for param in VERBS[name].params for word in param.opts}
    assert {"--color", "--verbose"} <= options
    assert ("--accept-new-host-key" in options) == (name not in ASK_NO_HOST)


KNOWS_DOCKER = {
    "planning": "the gate and the plan name engines and images",
    "values/record.py": "records of the first version name no runtime",
    "transport/client/host_client.py": "sends the engine's values, if a record has one",
}
"""Where a comparison with docker may stand beside the runtime and its liveness probe, and why."""
OPENING = {
    "compiled_code.py": "the agent's own folder",
    "record/safe_open.py": "the one for runs",
    "record/precision_evidence.py": "the host's own records, through no link",
    "cards/nvidia.py": "/proc and the kernel's log",
    "diagnosis/not_started.py": "the program that could not be started",
    "system/token_processes.py": "/proc",
    "host/leftovers.py": "/proc and the record of sweeps",
    "host/probe_host.py": "/proc and a file to try the disk",
    "making/scratch_folder.py": "a new file in a new folder",
    "store/outputs.py": "folders and files below a descriptor, through no link",
    "store/inheritance.py": "checkpoints",
    "store/script_checkpoint.py": "new files of a run that has not begun",
    "store/tree_files.py": "the store",
    "store/uploads.py": "the store",
    "store/worker_folder.py": "the agent's own folder",
    "liveness/slurm/slurm_programs.py": "the configuration of the cluster",
    "slurm/beside.py": "/dev/null",
    "segment/inputs.py": "what the service gave to the session",
    "system/mounts.py": "/proc",
    "system/process.py": "/proc",
    "system/process_use.py": "/proc",
    "system/socket_folders.py": "folders of its own, through no link",
}
"""The modules of the agent that open files without record/safe_open.py, and which."""
SAME_NAME = {
    "channel.py": "the client's end of its channel to an agent; the worker's end of its own",
    "checkpoints.py": "the worker writes what the agent keeps and judges",
    "evidence.py": "words for the evidence of an end; the worker's proof of a precision",
    "shipping.py": "the client sends files; the agent's streams",
    "probing.py": "what a backend is asked before a plan; the agent's verbs about itself",
    "running.py": "what a backend is asked for a run; the agent's verbs for one",
}
"""File names outside cli/ that occur more than once, and what each of them is."""


def compares_with_docker(path):
    """The lines of a file that branch on docker by its name, or on whether a run has a container engine."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = {getattr(side, "id", getattr(side, "attr", None)) for side in sides}
            constants = {side.value for side in sides if isinstance(side, ast.Constant)}
            if "docker" in constants or ("engine" in names and None in constants):
                yield node.lineno


@of_each(SOURCES)
def test_only_docker_s_own_modules_and_planning_ask_for_docker(path):
    """What differs between runtimes is in the backend's package and agent/liveness/, a module each."""
    if not ids(path).startswith(("backends/machine/docker", "agent/liveness/docker", *KNOWS_DOCKER)):
        assert not list(compares_with_docker(path))


def test_a_file_name_says_what_the_file_is_without_its_folder():
    """No two modules have the same name; those of cli/ are named after their verbs, and after what they show."""
    names = [
        path.name
        for path in SOURCES
        if path.name not in ("__init__.py", "__main__.py") and "cli" not in path.parts
    ]
    assert {name for name in names if names.count(name) > 1} == SAME_NAME.keys()


def test_only_these_modules_of_the_agent_open_files_by_themselves():
    """What lies below a run is opened by record/safe_open.py: a job may have put a link or a pipe there."""
    opens = {
        path.relative_to(PACKAGE / "agent").as_posix()
        for path in AGENT
        if re.search(r"\b(?<!\.)(os\.)?open\((?!open_regular\()", path.read_text())
    }
    assert opens == OPENING.keys()


def test_only_the_desk_and_its_channel_name_what_an_agent_is_asked():
    """A line passes on what desks ask. Everything else calls a typed method."""
    calls = [ids(path) for path in SOURCES if re.search(r"\b_?(agent|channel)\.call\(", path.read_text())]
    assert set(calls) <= {
        "transport/client/host_client.py",
        "transport/channel.py",
        "transport/shared_connection.py",
        "transport/client/run_reading.py",
    }


def test_the_groups_of_tests_are_of_files_that_exist():
    """A renamed file would silently lose its place among the longest, or on the bridge."""
    text = (REPOSITORY / "tests" / "conftest.py").read_text()
    names = re.findall(r'"(\w+/test_\w+\.py)"', text)
    assert len(names) > 20
    assert [name for name in names if not (REPOSITORY / "tests" / name).is_file()] == []
