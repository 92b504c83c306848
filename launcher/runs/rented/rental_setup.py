"""Set up a rented machine for containers: Docker, and NVIDIA's runtime if it has a card.

The setup can be repeated. Lambda's images include Docker. Like dstack's setup for them, this one installs
NVIDIA's toolkit, writes the engine's settings and restarts the engine. The engine must use cgroupfs: otherwise
containers lose their card when systemd is reloaded. Untested on a real machine.
"""

from __future__ import annotations

from pathlib import Path

from launcher.base.whole_file import write_whole
from launcher.errors import ServiceError
from launcher.rental.lease.instance_login import InstanceLogin, printable_end
from launcher.runs.follow.view import Stage

FAILED = "setup-failed"
SCRIPT = r"""
set -e
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
apt() {
    tries=0
    while :; do
        code=0
        said=$(apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" 2>&1) || code=$?
        echo "$said"
        tries=$((tries + 1))
        case "$code $tries $said" in
            "0 "* | *" 30 "*) return $code ;;
            *"Could not get lock"*) sleep 10 ;;
            *) return $code ;;
        esac
    done
}
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
if command -v nvidia-ctk >/dev/null; then
    if ! { grep -q cgroupfs "$settings" && grep -q nvidia "$settings"; } 2>/dev/null; then
        mkdir -p /etc/docker
        python3 - "$settings" <<'END'
import json, sys
try:
    with open(sys.argv[1]) as file:
        settings = json.load(file)
except FileNotFoundError:
    settings = {}
except ValueError as error:
    sys.exit("%s is not JSON: %s" % (sys.argv[1], error))
others = [one for one in settings.get("exec-opts", []) if not one.startswith("native.cgroupdriver=")]
settings["exec-opts"] = [*others, "native.cgroupdriver=cgroupfs"]
with open(sys.argv[1], "w") as file:
    json.dump(settings, file, indent=4)
END
        nvidia-ctk runtime configure --runtime=docker
        systemctl restart docker
        changed="$changed daemon.json"
    elif ! docker info --format '{{json .Runtimes}} {{.CgroupDriver}}' | grep -q 'nvidia.*cgroupfs'; then
        systemctl restart docker
        changed="$changed restart"
    fi
fi
docker version --format 'docker {{.Server.Version}}'
echo "done:" ${changed:-nothing to do}
"""
"""apt has no option to wait for the lock of its lists, which a fresh machine's own updates hold for a while."""


def set_up(login: InstanceLogin, log: Path, stage: Stage) -> None:
    """Set up the machine of an open login. Raises ServiceError `setup-failed` that names the log, and HostError."""
    stage.progress("docker, and NVIDIA's runtime for it")
    said = login.as_root(SCRIPT)
    write_whole(log, said.text.encode())
    last = printable_end(said.text)
    if said.code != 0 or not last.startswith("done: "):
        name = login.host.name
        why = last or f"exit code {said.code}"
        words = f"{name}: setting up the machine for containers failed: {why}\n  its output   {log}"
        raise ServiceError(name, FAILED, f'{words}\n  without containers   runtime = "native" in its table')
    stage.text = last.removeprefix("done: ")
