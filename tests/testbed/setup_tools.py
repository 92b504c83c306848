#!/usr/bin/python3
"""The tools that a rented machine is set up with, as their documentation has them: apt-get, systemctl, docker, nvidia-ctk.

A test links the names of the tools to this file in a folder, which is `sudo`'s path on a machine; beside it, `state.json`
says how that machine is, and `calls` has each call in a line. What is installed appears in the folder. It runs as root, with
the machine's own Python and nothing else.

    apt-get        fails while another process has the lists' lock (`lists_locked` tries), which no option waits for; waits
                   for dpkg's lock only with DPkg::Lock::Timeout; does not know the packages in `unknown`
    nvidia-ctk     runtime configure --runtime=docker: merges its runtime into /etc/docker/daemon.json
    systemctl      restart docker: the daemon reads daemon.json, and does not come up with one that is not JSON
    docker         version, info: what the daemon has read; fails while it is down
"""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(sys.argv[0]))
SETTINGS = "/etc/docker/daemon.json"
PROVIDES = {"docker.io": "docker", "nvidia-container-toolkit": "nvidia-ctk"}


def state():
    with open(os.path.join(HERE, "state.json")) as file:
        return json.load(file)


def change(**values):
    values = {**state(), **values}
    with open(os.path.join(HERE, "state.json"), "w") as file:
        json.dump(values, file)


def fail(code, *lines):
    sys.stderr.write("".join(line + "\n" for line in lines))
    sys.exit(code)


def settings():
    try:
        with open(SETTINGS) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def start_engine():
    try:
        change(engine=settings())
    except ValueError:
        change(engine=None)
        fail(
            1,
            "Job for docker.service failed because the control process exited with error code.",
            'See "systemctl status docker.service" and "journalctl -xeu docker.service" for details.',
        )


def apt_get(words):
    options, rest = {}, []
    while words:
        word = words.pop(0)
        if word == "-o":
            key, _, value = words.pop(0).partition("=")
            options[key] = value
        elif not word.startswith("-"):
            rest.append(word)
        elif word not in ("-q", "-y"):
            fail(100, f"E: Command line option {word} is not understood")
    now = state()
    if rest == ["update"]:
        if now["lists_locked"]:
            change(lists_locked=now["lists_locked"] - 1)
            fail(
                100,
                "Reading package lists...",
                "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 871 (apt-get)",
                "E: Unable to lock directory /var/lib/apt/lists/",
            )
        print("Hit:1 http://archive.ubuntu.com/ubuntu noble InRelease\nReading package lists...")
        change(is_updated=True)
        return
    if rest[:1] != ["install"]:
        fail(100, "E: Invalid operation {}".format(" ".join(rest)))
    if now["dpkg_locked"]:
        if "DPkg::Lock::Timeout" not in options:
            fail(
                100,
                "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 871 (unattended-upgr)",
            )
        print(
            "Waiting for cache lock: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 871 (unattended-upgr)..."
        )
        change(dpkg_locked=False)
    for name in rest[1:]:
        if name in now["unknown"] or not now["is_updated"]:
            fail(100, "Reading package lists...", f"E: Unable to locate package {name}")
        os.symlink(os.path.basename(__file__), os.path.join(HERE, PROVIDES[name]))
        print(f"Setting up {name} ...")
        if name == "docker.io":
            start_engine()


def nvidia_ctk(words):
    if words != ["runtime", "configure", "--runtime=docker"]:
        fail(1, "ERRO[0000] unrecognized command: {}".format(" ".join(words)))
    if not os.path.exists(SETTINGS):
        sys.stderr.write("INFO[0000] Config file does not exist; using empty config\n")
    else:
        sys.stderr.write(f"INFO[0000] Loading config from {SETTINGS}\n")
    try:
        values = settings()
    except ValueError as error:
        fail(1, f"ERRO[0000] unable to load config: {error}")
    values.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": "nvidia-container-runtime"}
    os.makedirs(os.path.dirname(SETTINGS), exist_ok=True)
    with open(SETTINGS, "w") as file:
        json.dump(values, file, indent=4)
    sys.stderr.write(f"INFO[0000] Wrote updated config to {SETTINGS}\n")
    sys.stderr.write("INFO[0000] It is recommended that docker daemon be restarted.\n")


def systemctl(words):
    if words != ["restart", "docker"]:
        fail(1, f"Unknown command verb {words[0]}.")
    if not os.path.exists(os.path.join(HERE, "docker")):
        fail(5, "Failed to restart docker.service: Unit docker.service not found.")
    start_engine()


def docker(words):
    engine = state()["engine"]
    if engine is None:
        fail(
            1,
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        )
    if words == ["version", "--format", "docker {{.Server.Version}}"]:
        print("docker 27.5.1")
    elif words == ["info", "--format", "{{json .Runtimes}} {{.CgroupDriver}}"]:
        options = engine.get("exec-opts", [])
        driver = "cgroupfs" if "native.cgroupdriver=cgroupfs" in options else "systemd"
        runtimes = {"runc": {"path": "runc"}, **engine.get("runtimes", {})}
        print(json.dumps(runtimes), driver)
    else:
        fail(125, "unknown: docker {}".format(" ".join(words)))


def main():
    name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
    with open(os.path.join(HERE, "calls"), "a") as file:
        print(name, *words, file=file)
    tools = {"apt-get": apt_get, "nvidia-ctk": nvidia_ctk, "systemctl": systemctl, "docker": docker}
    if name in tools:  # else it is only there: sleep, nvidia-smi
        tools[name](words)


main()
