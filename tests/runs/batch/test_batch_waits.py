"""A batch whose run waits for a person: its exit code, its words, and how it goes on."""

import shutil

import pytest
from testbed.batches import batches_for
from testbed.client import until

pytestmark = pytest.mark.slow(reason="a run over SSH, and five commands")
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIcrMZTHmOuE4Z6jMlUBQmMjKnHSbHo1Y7ZYgbU8eXHM"


@pytest.mark.long
def test_a_batch_of_one_waits_for_a_person_where_launch_gives_up(client, ssh_host):
    """Its host has another key: `attach` exits with 4, the batch with 5. Its run goes on, and so does the batch once the key is mended."""
    with batches_for(client, ssh_host) as made:
        known = made.folder / "known_hosts"
        shutil.copy(ssh_host.known_hosts, known)
        with (client.project / "launch.toml").open("a") as file:
            file.write(ssh_host.table(name="C", root=str(made.roots["A"]), known_hosts=str(known)))
        file = made.write(made.items(1), host="C")
        made.hold()
        process = client.start("batch", file)
        until(lambda: client.run("batch", "status").returncode == 0, "the batch")
        until(lambda: made.rows()["i1"]["step"] == 1, "its first step")
        known.write_text(f"[127.0.0.1]:{ssh_host.port} {OTHER_KEY}\n")
        ssh_host.cut()
        _, said = process.communicate(timeout=180)
        assert process.returncode == 5, said
        row = made.rows()["i1"]
        assert "key" in row["why"]
        assert client.run("attach", row["run"]).returncode == 4
        shutil.copy(ssh_host.known_hosts, known)
        made.go_on()
        done = client.run("batch", "resume")
        assert done.returncode == 0, done.stderr
        made.judge(["i1"])
