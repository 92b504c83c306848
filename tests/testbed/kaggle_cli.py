"""The official Kaggle CLI, run against the stand-in: so that our client and the stand-in do not merely agree with each other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from testbed.kaggle_service import KaggleService

# The table of endpoints is patched before anything of `kaggle` is imported: to import it already makes a call.
_MAIN = """\
import os, sys
os.environ["KAGGLE_API_ENVIRONMENT"] = "LOCALHOST"
import kagglesdk.kaggle_env as table
table._env_to_endpoint[table.KaggleEnv.LOCAL] = os.environ.pop("STAND_IN")
import kaggle.cli
sys.argv[0] = "kaggle"
kaggle.cli.main()
"""


class KaggleCli:
    """The CLI of an environment, with a home of its own and only the variables that a test gives it."""

    def __init__(
        self, python: Path, service: KaggleService, home: Path, variables: Mapping[str, str]
    ) -> None:
        self._python = python
        self._home = home
        self._variables = {**variables, "STAND_IN": service.endpoint, "NO_PROXY": "127.0.0.1"}
        home.mkdir(exist_ok=True)

    def run(self, *words: str, timeout_s: float = 60) -> str:
        """Run a command of it; return what it says. It must exit with 0."""
        done = subprocess.run(
            [self._python, "-c", _MAIN, *words],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self._home),
                "TMPDIR": str(self._home),
                **self._variables,
            },
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        return said


def write_kernel(folder: Path, ref: str, source: str, **metadata: object) -> None:
    """Write the folder of a kernel as the CLI reads it."""
    folder.mkdir()
    (folder / "script.py").write_text(source)
    about = {"id": ref, "title": ref.partition("/")[2], "code_file": "script.py"}
    kind = {"language": "python", "kernel_type": "script", "enable_internet": False}
    (folder / "kernel-metadata.json").write_text(json.dumps({**about, **kind, **metadata}))


def write_dataset(folder: Path, ref: str, files: Mapping[str, bytes]) -> None:
    """Write the folder of a dataset as the CLI reads it."""
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    about = {"id": ref, "title": ref.partition("/")[2], "licenses": [{"name": "CC0-1.0"}]}
    (folder / "dataset-metadata.json").write_text(json.dumps(about))
