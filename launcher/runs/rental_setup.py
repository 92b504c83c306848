"""Set up a rented machine for containers: Docker, and NVIDIA's runtime where there is a card. Done twice, it changes nothing.

The order is that of dstack for Lambda's images, which have Docker: the toolkit, the engine's settings, a restart. Containers
lose their card when systemd is reloaded unless the engine uses cgroupfs. Nothing was tried against a real machine.
"""

from __future__ import annotations

from pathlib import Path

from launcher.errors import ServiceError
from launcher.hosts.instance_login import Login, printable_end
from launcher.runs.view import Stage
from launcher.runs.whole_file import write_whole

FAILED = "setup-failed"
SCRIPT = r"""
set -e
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -q -y -o DPkg::Lock::Timeout=300 "$@"; }
changed=
if ! command -v docker >/dev/null; then
    apt update
    apt install docker.io
    changed=docker
fi
if command -v nvidia-smi >/dev/null && ! command -v nvidia-ctk >/dev/null; then
    apt update
    apt install nvidia-container-toolkit
    changed="$changed nvidia-container-toolkit"
fi
settings=/etc/docker/daemon.json
if command -v nvidia-ctk >/dev/null && ! { grep -q cgroupfs "$settings" && grep -q nvidia "$settings"; } 2>/dev/null; then
    mkdir -p /etc/docker
    python3 - "$settings" <<'END'
import json, sys
try:
    with open(sys.argv[1]) as file:
        settings = json.load(file)
except FileNotFoundError:
    settings = {}
others = [one for one in settings.get("exec-opts", []) if not one.startswith("native.cgroupdriver=")]
settings["exec-opts"] = [*others, "native.cgroupdriver=cgroupfs"]
with open(sys.argv[1], "w") as file:
    json.dump(settings, file, indent=4)
END
    nvidia-ctk runtime configure --runtime=docker
    systemctl restart docker
    changed="$changed daemon.json"
fi
docker version --format 'docker {{.Server.Version}}'
echo "done: ${changed:-nothing to do}"
"""


def set_up(login: Login, log: Path, stage: Stage) -> None:
    """Set up the machine of an open login. Raises ServiceError `setup-failed` that names the log, and HostError."""
    stage.progress("docker, and NVIDIA's runtime for it")
    said = login.as_root(SCRIPT)
    write_whole(log, said.text.encode())
    last = printable_end(said.text)
    if said.code != 0 or not last.startswith("done: "):
        name = login.host.name
        why = last or f"exit code {said.code}"
        words = f"{name}: setting up the machine for containers failed: {why}\n  what it printed   {log}"
        raise ServiceError(name, FAILED, f'{words}\n  without containers   runtime = "native" in its table')
    stage.text = last.removeprefix("done: ")
