"""What a test leaves of a client's commands is ended, and nothing of another client."""

import sys

from testbed.client import Client, is_gone, until

SLEEPER = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(sleep, start_new_session=True).pid, flush=True)
time.sleep(600)
"""


def test_a_clients_commands_end_with_its_test_and_those_of_another_go_on(tmp_path):
    """Also what they have started in a session of its own, as a batch's worker in the background."""
    clients = [Client(tmp_path / "left"), Client(tmp_path / "other")]
    processes = []
    for client in clients:
        client.program = [sys.executable, "-c", SLEEPER]
        processes.append(client.start())
    pids = [(process.pid, int(process.stdout.readline())) for process in processes]
    clients[0].end_commands()
    until(lambda: all(map(is_gone, pids[0])), "the end of both", 10)
    assert not any(map(is_gone, pids[1]))
    clients[1].end_commands()
    until(lambda: all(map(is_gone, pids[1])), "the end of the others", 10)
    for process in processes:
        process.communicate(timeout=180)
