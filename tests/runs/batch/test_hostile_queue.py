"""A batch folder in a clone is anyone's: `ps` names one that launch did not make and passes over it, and the verbs of batches refuse it."""

# ruff: noqa: S608 - the SQL is an attacker's

import os
import shutil
import sqlite3
import struct

import pytest
from testbed.entries import know
from testbed.tables import mostly_long

from launcher.batch import batch_index
from launcher.batch.batch_queue import BatchQueue, NewItem, make_queue
from launcher.batch.batch_stop import _stop
from launcher.batch.input.batch_definition import Rules
from launcher.batch.queued_item import Item, ItemState
from launcher.errors import RunError

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT"
OURS, DAMAGED = "not a batch of launcher", "is damaged"
LIMIT_S = 30
"""Far more than a command takes; one that hangs takes longer than that."""


@pytest.fixture
def evil(client, monkeypatch):
    """A batch of 300 items, as launch makes it, that is about to be changed."""
    monkeypatch.chdir(client.project)
    monkeypatch.setenv("LAUNCH_RUNS", str(client.runs))
    entries = [NewItem(f"i{n}", "{}", ("lab",), {"n": n}) for n in range(300)]
    with make_queue("evil", Rules(), entries) as queue:
        return queue.folder


def tables(folder, script):
    """Make the queue of a script instead, with what every queue has."""
    (folder / "queue.sqlite").unlink()
    change(
        folder,
        "CREATE TABLE batch (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
        f"INSERT INTO batch VALUES ('version','1'),('rules','{{\"max_cost\":null}}');{script}",
    )


def change(folder, script):
    """Run a script of SQL on the queue."""
    with sqlite3.connect(folder / "queue.sqlite") as data:
        data.executescript(script)
    data.close()


def endless_views(folder):
    """Tables that are views over a number without end."""
    tables(
        folder,
        f"CREATE VIEW run AS {ENDLESS} 'r'||x AS run, x AS item FROM c WHERE x<0;"
        "CREATE VIEW item AS SELECT item AS number, run AS name, '{}' AS request, '[]' AS hosts, '{}' AS point,"
        "'queued' AS state, run, '' AS host, '' AS outcome, '' AS why, '[]' AS tried, 0.0 AS changed FROM run;",
    )


def endless_trigger(folder):
    """A program that runs when an item changes."""
    change(
        folder,
        f"CREATE TRIGGER t AFTER UPDATE ON item BEGIN INSERT INTO run {ENDLESS} x, x FROM c WHERE x<0; END",
    )


def computed_column(folder):
    """A column that is computed when it is read."""
    tables(
        folder,
        "CREATE TABLE run (run TEXT PRIMARY KEY, item INT AS (length(hex(zeroblob(100000000)))));"
        "INSERT INTO run (run) VALUES ('261125-i1-abcdef');",
    )


def computed_index(folder):
    """An index of theirs."""
    change(folder, "CREATE INDEX more ON item (abs(number))")


def without_rowid(folder):
    """Our table of items in another form."""
    tables(
        folder,
        "CREATE TABLE run (run TEXT PRIMARY KEY, item INTEGER NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE item (number, name, request, hosts, point, state, run, host, outcome, why, tried, changed,"
        "PRIMARY KEY (number, name)) WITHOUT ROWID;",
    )


def many_tables(folder):
    """A list of tables that takes long to read."""
    change(folder, "BEGIN;" + "".join(f"CREATE TABLE t{n} (a);" for n in range(3_000)) + "COMMIT;")


def long_table(folder):
    """A table whose words take long to read."""
    change(folder, f"CREATE TABLE t (a /*{'x' * 10_000_000}*/)")


def pages(data, first, count, cells):
    """Return pages of a table that lead each to the next, by hundreds of ways: fifteen of them have more leaves than atoms exist."""
    made = b""
    for number in range(first, first + count):
        after = number + 1 if number + 1 < first + count else 2
        head = struct.pack(">BHHHBI", 5, 0, cells, 4000, 0, after)
        cell = struct.pack(">IB", after, 1)
        page = head + struct.pack(">H", 4000) * cells
        made += page.ljust(4000, b"\0") + cell.ljust(len(data), b"\0")[:96]
    return made


def many_ways(folder, root):
    """Have the pages of a table lead to the same ones again and again."""
    file = folder / "queue.sqlite"
    change(folder, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(file.read_bytes())
    size = struct.unpack(">H", data[16:18])[0]
    assert size == 4096
    first = len(data) // size + 1
    begin = 100 if root == 1 else 0
    page = bytearray(size)
    page[:begin] = data[:begin]
    page[begin : begin + 12] = struct.pack(">BHHHBI", 5, 0, 0, size, 0, first)
    data[(root - 1) * size : root * size] = page
    data += pages(data[:4096], first, 15, 900)
    data[28:32] = struct.pack(">I", len(data) // size)
    file.write_bytes(data)


def items_without_end(folder):
    """So that the table of items has no end."""
    with sqlite3.connect(folder / "queue.sqlite") as data:
        (root,) = data.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'item'").fetchone()
    data.close()
    many_ways(folder, root)


def schema_without_end(folder):
    """So that the list of tables has no end."""
    many_ways(folder, 1)


def huge_value(folder):
    """A value that fills the memory of whoever reads it."""
    change(folder, "UPDATE item SET request = CAST(zeroblob(200000000) AS TEXT)  WHERE number = 1")


def huge_file(folder):
    """A file that is all holes."""
    os.truncate(folder / "queue.sqlite", 1 << 40)


def pipe(folder):
    """A queue that nobody ever writes."""
    (folder / "queue.sqlite").unlink()
    os.mkfifo(folder / "queue.sqlite")


def pipe_of_the_worker(folder):
    """The same beside the queue."""
    os.mkfifo(folder / "worker.json")


def link(folder):
    """A database of this user's elsewhere."""
    shutil.move(folder / "queue.sqlite", folder.parents[2] / "mine.sqlite")
    (folder / "queue.sqlite").symlink_to("../../../mine.sqlite")


def link_of_the_log(folder):
    """A file of this user's, which SQLite would write over."""
    (folder.parents[2] / "mine").write_text("mine")
    (folder / "queue.sqlite-wal").symlink_to("../../../mine")


def link_of_the_folder(folder):
    """A batch that lies elsewhere."""
    shutil.move(folder, folder.parents[2] / "elsewhere")
    folder.symlink_to("../../elsewhere")


def endless_device(folder):
    """A file beside the queue that has no end."""
    (folder / "queue.sqlite-more").symlink_to("/dev/zero")


def deep_rules(folder):
    """Rules that are nested too deeply."""
    change(folder, f"UPDATE batch SET value = '{'[' * 100_000}' WHERE key = 'rules'")


def wrong_limit(folder):
    """A limit that is no number."""
    change(folder, """UPDATE batch SET value = '{"max_cost": "\x1b[31m"}' WHERE key = 'rules'""")


def huge_limit(folder):
    """A limit that no float holds."""
    change(folder, f"""UPDATE batch SET value = '{{"max_cost": 1{"0" * 400}}}' WHERE key = 'rules'""")


def other_run(folder):
    """A run whose id leads elsewhere."""
    change(folder, "UPDATE item SET run = '../../elsewhere', state = 'confirmed' WHERE number = 1")


def bytes_as_name(folder):
    """A name that is no text."""
    change(folder, "UPDATE item SET name = x'00' WHERE number = 1")


def deep_point(folder):
    """A point of the matrix that is nested too deeply."""
    change(folder, f"UPDATE item SET point = '{'[' * 100_000}' WHERE number = 1")


def no_time(folder):
    """A time that is none."""
    change(folder, "UPDATE item SET changed = 'now' WHERE number = 1")


STRANGE = (
    *(endless_views, endless_trigger, computed_column, computed_index, without_rowid, many_tables, long_table),
    *(huge_file, pipe, pipe_of_the_worker, link, link_of_the_log, link_of_the_folder, endless_device),
)  # fmt: skip
BROKEN = (schema_without_end, items_without_end, huge_value, deep_rules, wrong_limit, huge_limit, other_run, bytes_as_name, deep_point, no_time)  # fmt: skip


@mostly_long("alter", STRANGE, ci=(0, 2, 4, 7, 8, 10, 13), ids=lambda alter: alter.__name__)
def test_a_folder_that_launch_did_not_make_is_named_and_passed_over(client, evil, alter):
    """By `ps` and `batch list` in a line; the verbs of batches end with 2. Nothing hangs, nothing elsewhere changes.

    Without a regular file as its queue a folder is no batch, and a link holds none: that needs no line.
    """
    alter(evil)
    said = f"{OURS}: {evil}: " if alter.__name__ not in ("pipe", "link", "link_of_the_folder") else ""
    mine = client.project / "mine"
    for words in (("ps",), ("batch", "list")):
        done = client.run(*words, timeout=LIMIT_S)
        assert done.returncode == 0
        assert said in done.stderr
    for verb in ("status", "resume", "stop", "rm"):
        done = client.run("batch", verb, "evil", timeout=LIMIT_S)
        assert (done.returncode, said in done.stderr) == (2, True), (verb, done)
    assert client.run("compare", "evil", timeout=LIMIT_S).returncode == 2
    assert not mine.exists() or mine.read_text() == "mine"


@pytest.mark.parametrize("alter", BROKEN, ids=lambda alter: alter.__name__)
def test_a_queue_with_values_that_launch_does_not_write_is_damaged(client, evil, alter):
    """It is said so, without a traceback; no path is made of them."""
    alter(evil)
    assert client.run("ps", timeout=LIMIT_S).returncode == 0
    assert client.run("batch", "list", timeout=LIMIT_S).returncode == 0
    done = client.run("batch", "status", "evil", timeout=LIMIT_S)
    assert (done.returncode, DAMAGED in done.stderr) == (1, True), done
    assert not (client.project / "elsewhere").exists()


def test_no_file_is_deleted_that_a_journal_names(client, evil):
    """SQLite plays a journal back, then deletes the file that the journal says belongs to it: here a key of this user's."""
    key = client.project / "key"
    key.write_text("mine")
    change(evil, "PRAGMA journal_mode=DELETE")
    name = str(key).encode()
    total = sum(byte - 256 if byte > 127 else byte for byte in name) & 0xFFFFFFFF
    magic = bytes.fromhex("d9d505f920a163d7")
    head = magic + struct.pack(">IIIII", 0, 0, (evil / "queue.sqlite").stat().st_size // 4096, 512, 4096)
    lead = struct.pack(">I", (1 << 30) // 4096 + 1) + name + struct.pack(">II", len(name), total) + magic
    (evil / "queue.sqlite-journal").write_bytes(head.ljust(512, b"\0") + lead)
    done = client.run("ps", timeout=LIMIT_S)
    assert key.read_text() == "mine"
    assert f"{OURS}: {evil}: " in done.stderr


def test_a_name_that_a_shell_would_not_take_as_it_is_is_no_batch(client, evil):
    """A message names a command to type, with the batch in it."""
    other = evil.rename(evil.with_name("a;touch pwned"))
    done = client.run("ps", timeout=LIMIT_S)
    assert f"{OURS}: {other}: " in done.stderr
    assert "launch batch resume" not in done.stderr


def test_an_item_on_a_host_that_it_was_not_begun_with_is_damage(client, evil):
    """Else `batch stop` would contact it."""
    change(
        evil, "UPDATE item SET state='confirmed', run='261128-i1-aaaaaa', host='me@evil:22' WHERE number=1;"
    )
    assert DAMAGED in client.run("batch", "stop", "evil").stderr


def test_a_batch_stops_no_run_of_another(client, evil):
    """The queue of a batch of this user may have been replaced."""
    know("261128-x-bbbbbb", client.runs)
    item = Item(
        1, "i1", "{}", ("lab",), {}, ItemState.CONFIRMED, "261128-x-bbbbbb", "lab", None, None, (), 0.0
    )
    with pytest.raises(RunError, match="is not a run of the batch evil"):
        _stop("evil", item, now=True)


def test_a_copy_of_a_batch_that_is_removed_leaves_the_batch(evil, tmp_path):
    """A copy has the same digest."""
    with BatchQueue("evil", evil) as queue:
        batch_index.enter(queue)
        batch_index.forget(queue.identity(), tmp_path / "copy")
        assert batch_index.has(queue)
        batch_index.forget(queue.identity(), evil)
        assert not batch_index.has(queue)
