"""Records in the package, when it is built, which commit it is of: `launch --version` says it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds the file `launcher/commit` to what is built of a checkout; an sdist has it already."""

    _folder = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, if git knows the commit. An editable installation is the checkout itself."""
        if version == "editable" or not Path(self.root, ".git").exists() or shutil.which("git") is None:
            return
        words = ["git", "-c", "core.fsmonitor=", "-C", self.root, "rev-parse", "--short=12", "HEAD"]
        asked = subprocess.run(words, capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            self._folder = tempfile.mkdtemp()
            file = Path(self._folder, "commit")
            file.write_text(asked.stdout)
            build_data["force_include"][str(file)] = "launcher/commit"

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact: str) -> None:
        """Remove what is in the build by now."""
        shutil.rmtree(self._folder, ignore_errors=True)
