"""The agent's command line."""

from __future__ import annotations

import importlib
import sys

_MODULES = {
    "serve": "serving.serve",
    "keep": "training.keeper",
    "supervise": "training.attempts",
    "contain": "training.contain",
    "compile": "compiled_code",
    "settle": "making.environment_seal",
    "settle-run": "store.code_sync",
    "guard": "system.client_program",
    "member": "slurm.member",
    "webhook": "training.webhook",
    "relay": "verbs.relay",
    "segment": "segment.segment",
    "job": "slurm.job_script",
    "step": "slurm.step",
    "beside": "slurm.beside",
    "attended": "slurm.attended",
}


def main(argv: list[str]) -> int:
    """Run one verb of the agent; return its exit status."""
    if not argv or argv[0] not in _MODULES:
        sys.stderr.write("usage: agent (%s) ARGUMENT\n" % " | ".join(_MODULES))
        return 2
    importlib.import_module(".system.core_limit", __package__).turn_off()
    # Load only what the verb needs.
    module = importlib.import_module("." + _MODULES[argv[0]], __package__)
    return int(module.main(argv[1:]))
