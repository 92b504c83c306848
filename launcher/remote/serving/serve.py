"""The agent at the other end of a client's connection: answers requests until the client falls silent.

A message is one line of JSON, followed by `size` raw bytes where it says so. A request is {"id", "verb", "args"}, an
answer {"id", "ok"} or {"id", "error": {"code", "message"}}. Paths never come from a request: a run is named by its id.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from typing import Any, Callable, Iterator

from ..cards import lease, tickets
from ..fate import fate, run_state
from ..host import garbage, leftovers, probe_host
from ..making import environment_build, image_build
from ..record import secret, strict_json
from ..record.rundir import RUN_ID, TERMINAL, VERSION, Folder, Lock, Run, read_json, read_text, write_durably
from ..store import shipping
from ..store.manifest import Manifest, ShippingError, check
from ..store.store import Store
from ..system import attending, process
from . import command, cursors
from .summary import summary

SILENCE_S = 60.0
START_S = 20.0
CONTACT_S = 15.0  # a sweep may be at what is left of the run
KEEPER_GRACE_S = 3.0
LOCK_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
IMAGE_ID = re.compile(r"sha256:([0-9a-f]{64})")
MOST_PACKAGES = 64 * 1024
SPARE_FILES = 100  # fewer are copied in no time
POLL_S = 0.01
MAX_LINE = 4 * 1024 * 1024
MAX_PAYLOAD = 256 * 1024 * 1024


def main(arguments: list[str]) -> int:
    """Serve one client on standard input and output below a root; return 0 when it has gone."""
    root = os.path.abspath(os.path.expanduser(arguments[0]))
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    signal.signal(signal.SIGHUP, lambda _number, _frame: sys.exit(0))
    with contextlib.suppress(OSError):  # on a full disk whoever wants to run says so; to look needs no worker
        _unpack_worker()
    server = Server(root, Wire(0, 1))
    try:
        server.serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0  # the client has gone, which it may at any time
    finally:
        server.clear_away()
    return 0


class RequestError(Exception):
    """A request that cannot be answered; its code is a word for programs, its text for people."""

    def __init__(self, code: str, message: str, values: dict[str, Any] | None = None) -> None:
        """Hold both, and what programs may read beside the code."""
        super().__init__(message)
        self.code = code
        self.values = values or {}


class Wire:
    """Lines and raw bytes over two descriptors. A client that is silent for too long is gone."""

    def __init__(self, reader: int, writer: int) -> None:
        """Speak over these descriptors."""
        os.set_blocking(writer, False)
        self._reader = reader
        self._writer = writer
        self._rest = b""
        self._heard = time.monotonic()

    def has_input(self, timeout_s: float) -> bool:
        """Whether the client has said something, or left, within the time."""
        return bool(self._rest) or bool(select.select([self._reader], [], [], timeout_s)[0])

    def _fill(self) -> None:
        if not select.select([self._reader], [], [], SILENCE_S)[0]:
            raise EOFError
        piece = os.read(self._reader, 1 << 18)
        if not piece:
            raise EOFError
        self._rest += piece
        self._heard = time.monotonic()

    def wait(self, sources: list[int], timeout_s: float) -> list[int] | None:
        """Wait for the client's word, or for one of `sources`; return which of them can be read.

        None while the client takes no more: what is read now could not be told. Raises EOFError when it is silent for
        too long.
        """
        if time.monotonic() > self._heard + SILENCE_S:
            raise EOFError
        if not select.select([], [self._writer], [], 0.0)[1]:
            select.select([self._reader], [self._writer], [], timeout_s)
            return None
        ready = select.select([self._reader, *sources], [], [], timeout_s)[0]
        return [one for one in ready if one != self._reader]

    def read_line(self) -> bytes:
        """Return the next line. Raises EOFError when the client has gone."""
        while b"\n" not in self._rest:
            if len(self._rest) > MAX_LINE:
                raise EOFError
            self._fill()
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises EOFError when the client has gone."""
        pieces = []
        while size:
            if not self._rest:
                self._fill()
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def write(self, message: dict[str, Any], payload: bytes = b"") -> None:
        """Send a message and the bytes behind it."""
        if payload:
            message = dict(message, size=len(payload))
        for part in (strict_json.encode(message).encode() + b"\n", payload):
            view = memoryview(part)
            while view:
                if not select.select([], [self._writer], [], SILENCE_S)[1]:
                    raise BrokenPipeError
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._writer, view) :]


class Server:
    """The verbs, by name."""

    def __init__(self, root: str, wire: Wire) -> None:
        """Serve runs below `root`."""
        self.root = root
        self.wire = wire
        self.store = Store(root)
        self.prepared: dict[str, Folder] = {}
        self.handed_over: dict[str, Folder] = {}
        self.held: dict[str, Lock] = {}
        self.unsealed: dict[str, tuple[str, dict[str, Any]]] = {}
        self.cards: dict[str, lease.Taken] = {}
        self.ticket: tickets.Ticket | None = None
        self.offered: dict[str, Manifest] = {}
        self.verbs: dict[str, Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]] = {
            "remove": self.remove,
            "gc": self.gc,
            "packages": self.packages,
            "sweep": self.sweep,
            "remains": lambda args, _payload: ({"left": leftovers.remains(self.run(args))}, b""),
            "ping": lambda _args, _payload: ({}, b""),
            "probe": self.probe,
            "create": self.create,
            "offer": self.offer,
            "ship": self.ship,
            "inherit": self.inherit,
            "secrets": self.take_secrets,
            "start": self.start,
            "hand_over": self.hand_over,
            "take_back": self.take_back,
            "await": self.await_agent,
            "place": lambda args, _payload: ({"place": self._place(self.run(args))}, b""),
            "root": lambda _args, _payload: ({"root": self._root_label()}, b""),
            "hold": self.hold,
            "builder": lambda args, _payload: (
                {"buildkit": image_build.has_buildkit(args.get("engine") or {})},
                b"",
            ),
            "build": self.build,
            "environment": self.environment,
            "make_environment": self.make_environment,
            "seal_environment": self.seal_environment,
            "exec": self.execute,
            "resume": self.resume,
            "runs": self.runs,
            "read": self.read,
            "wish": self.wish,
            "pull": self.pull,
        }

    def serve(self) -> None:
        """Answer until the client has gone."""
        while True:
            request = strict_json.decode(self.wire.read_line())
            size = request.get("size", 0)
            if size > MAX_PAYLOAD:
                raise EOFError
            payload = self.wire.read(size)
            try:
                verb = self.verbs.get(request["verb"])
                if verb is None:
                    raise RequestError("unknown-verb", "the agent knows no verb %r" % request["verb"])
                answer, back = verb(request.get("args") or {}, payload)
                message: dict[str, Any] = {"ok": answer}
            except RequestError as error:
                told = {"code": error.code, "message": str(error), "values": error.values}
                message, back = {"error": told}, b""
            except garbage.RefusedError as error:
                message, back = {"error": {"code": "refused", "message": str(error)}}, b""
            except ShippingError as error:
                message, back = {"error": {"code": "ship", "message": str(error)}}, b""
            except OSError as error:
                text = "%s: %s" % (error.filename or self.root, error.strerror)
                message, back = {"error": {"code": "os", "message": text}}, b""
            self.wire.write(dict(message, id=request.get("id")), back)

    def clear_away(self) -> None:
        """Remove what was prepared on this connection and never started: nothing half-done stays behind."""
        with contextlib.suppress(OSError):
            self._leave_the_line()
        for folder in self.handed_over.values():
            folder.release()
        for run_id, folder in self.prepared.items():
            folder.release()
            with contextlib.suppress(OSError):  # a sweep removes what is left of them
                lease.give_back(Run(os.path.join(self.root, "runs", run_id)))
            shutil.rmtree(os.path.join(self.root, "runs", run_id), ignore_errors=True)
        for run_id in list(self.cards):
            self._let_cards_go(run_id)
        for name in list(self.unsealed):
            with contextlib.suppress(OSError):  # as above
                self._drop_unsealed(name)

    def run(self, args: dict[str, Any]) -> Run:
        """Return the run that a request names. Raises RequestError where there is none."""
        run = self._name(args)
        if not os.path.isdir(run.path):
            raise RequestError("no-run", "there is no run %s below %s" % (run.id, self.root))
        return run

    def _name(self, args: dict[str, Any]) -> Run:
        run_id = args.get("run")
        if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
            raise RequestError("bad-run", "%r is no run id" % (run_id,))
        return Run(os.path.join(self.root, "runs", run_id))

    # before a run

    def probe(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the host's facts."""
        more = (args.get("engine"), args.get("model"), args.get("model_keys"))
        return probe_host.probe(self.root, args.get("env"), args.get("packages"), *more), b""

    def create(self, args: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Make a run's folder with its plan (the payload) and its first numbered folder, held by this process.

        Its cards are leased: `cards` of `gpus`, the first that are free, or all of them; a client that `queues` asks again.
        """
        run = self._name(args)
        kind = str(args.get("runtime") or fate.NATIVE)
        if not fate.is_known(kind):
            raise RequestError("bad-runtime", "this agent knows no runtime %r" % kind)
        runtime_fate = fate.fate_of(kind)
        _unpack_worker()
        os.makedirs(os.path.dirname(run.path), exist_ok=True)
        try:
            os.mkdir(run.path, 0o755)
        except FileExistsError:
            raise RequestError("run-exists", "there is a run %s already" % run.id) from None
        folder = run.new_folder()
        self.prepared[run.id] = folder
        offered, any_of = args.get("gpus"), args.get("any_of")
        gpus = self._take_cards(run, offered, args.get("cards"), queues=args.get("queues") is True)
        write_durably(run.plan, payload)
        write_durably(run.wish, "run")
        write_durably(run.token, os.urandom(16).hex(), 0o600)
        runtime = {
            "kind": kind,
            "interpreter": None if runtime_fate.is_in_image else self._interpreter(args, payload),
            "engine": args.get("engine"),
            "gpus": gpus,
            "any_of": any_of if runtime_fate.can_change_cards else gpus,
            "paths": self._paths_named(payload),
        }
        record = {
            "version": VERSION,
            "run": run.id,
            "kind": "prepare",
            "agent_folder": os.path.dirname(os.path.abspath(sys.argv[0])),
            "folder": folder.number,
            "time": time.time(),
            "host_id": process.host_id(),
            "boot_id": process.boot_id(),
            "runtime": runtime,
        }
        write_durably(folder.attempt, strict_json.encode(record) + "\n")
        folder.write_state("preparing")
        return {"run": run.id, "place": self._place(run), "gpus": gpus}, b""

    def _interpreter(self, args: dict[str, Any], plan: bytes) -> str:
        """Return the interpreter of a native run: that of the environment which its plan has made, or the one of `env`."""
        made = strict_json.decode(plan).get("environment")
        if made is None:
            return probe_host.interpreter_path(args.get("env"))
        return environment_build.python_of(self._environment(made))

    def _take_cards(self, run: Run, gpus: Any, count: Any, *, queues: bool) -> list[str] | None:
        """Lease a new run's cards; where they are not to be had nothing is left of the run. Raises RequestError.

        A client that `queues`, and asks again, has its place in the line then.
        """
        if not gpus:
            return None if gpus is None else []
        wanted, needed = [str(one) for one in gpus], None if count is None else int(count)
        taken = lease.take(run, wanted, needed, in_line=True, ticket=self.ticket)
        if taken.gpus or not queues:
            self._leave_the_line()
        else:
            self.ticket = lease.draw(self.root, wanted, needed, self.ticket)
        if not taken.gpus:
            self.prepared.pop(run.id).release()
            shutil.rmtree(run.path, ignore_errors=True)
            words = ", ".join(one.words for one in taken.busy)
            raise RequestError("card-leased", words, {"busy": [one._asdict() for one in taken.busy]})
        self.cards[run.id] = taken
        return taken.gpus

    def _leave_the_line(self) -> None:
        if self.ticket is not None:
            self.ticket.leave()
            self.ticket = None

    def _let_cards_go(self, run_id: str) -> None:
        """Leave a run's cards to its agent, which holds them by now, or to nobody."""
        taken = self.cards.pop(run_id, None)
        if taken is not None:
            taken.release()

    def _paths_named(self, plan: bytes) -> dict[str, str]:
        """Return where a plan's `host:` sources lie, as they are written: a container has another home."""
        told = strict_json.decode(plan)
        sources = [told.get("model"), *(told.get("data") or {}).values()]
        written = [one["value"] for one in sources if one is not None and one.get("kind") == "host"]
        paths = {one: os.path.abspath(os.path.expanduser(one)) for one in written}
        for path in paths.values():
            if not os.path.exists(path):
                raise RequestError("no-source", "host:%s: there is nothing of this name here" % path)
        return paths

    def _place(self, run: Run) -> dict[str, Any]:
        """Return what a container of the run needs to see, and as whom it is to run."""
        agent = os.path.abspath(sys.argv[0])
        record = run.prepared()
        agent_folder = record.get("agent_folder") or os.path.dirname(agent)
        data = os.path.join(self.store.path, "data")
        evidence, leases = run.evidence(process.host_id()), lease.folder_of(self.root)
        for folder in (run.cache, data, evidence, leases):
            os.makedirs(folder, exist_ok=True)
        return {
            "path": run.path,
            "agent": os.path.join(agent_folder, os.path.basename(agent)),
            "host_id": process.host_id(),
            "root": self._root_label(),
            "user": probe_host.user(),
            "uid": os.getuid(),
            "gid": os.getgid(),
            "groups": os.getgroups(),
            "read": [agent_folder, data, *((record.get("runtime") or {}).get("paths") or {}).values()],
            "written": [run.cache, evidence, leases],
        }

    def offer(self, args: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Take a tree's manifest (the payload); put code/ and data/ in place, or return what must be sent before."""
        run = self._prepared_run(args)
        manifest = strict_json.decode(payload)
        check(manifest)
        self.offered[run.id] = manifest
        with self.store.shared():
            return {"missing": self.store.place(manifest, run)}, b""

    def ship(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Take the files that the last answer named as missing, in its order, and put the tree in place."""
        run = self._prepared_run(args)
        manifest = self.offered.get(run.id, {})
        stream = shipping.ChunkReader(self.wire)
        try:
            with self.store.shared():
                sizes = {one["sha256"]: one["size"] for one in manifest.values() if "link" not in one}
                wanted = [str(sha256) for sha256 in args.get("files") or []]
                if not set(wanted) <= set(sizes):
                    raise RequestError("not-offered", "run %s: a file that was not offered" % run.id)
                self.store.receive(stream, [(sha256, sizes[sha256]) for sha256 in wanted])
                return {"missing": self.store.place(manifest, run)}, b""
        finally:
            stream.skip_rest()  # the client sends the stream whole, whatever we think of it

    def inherit(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Give a prepared run code, data and the newest whole checkpoint of its `parent`; see parentage.py.

        In place of a tree from the client: what lies here is not sent again.
        """
        from ..store import parentage  # few clients ask for it, and all would wait for it to load

        run = self._prepared_run(args)
        parent = self.run({"run": args.get("parent")})
        self._is_mine(parent)
        lock = Lock.take(
            parent.contact_lock, shared=True
        )  # several may go on from one; nobody judges it meanwhile
        if lock is None:
            raise RequestError("held", "another client is at run %s: try again" % parent.id)
        try:
            run_state.fate_of(parent).forget(parent)
            asked = [str(key) for key in args.get("asked") or []]
            answer = parentage.inherit(parent, run, self.prepared[run.id], self.store, asked)
        except parentage.ParentError as error:
            raise RequestError(error.code, str(error)) from None
        finally:
            lock.release()
        self.offered[run.id] = read_json(run.manifest)
        return answer, b""

    def _prepared_run(self, args: dict[str, Any]) -> Run:
        run = self.run(args)
        if run.id not in self.prepared:
            raise RequestError("not-prepared", "run %s is not being prepared here" % run.id)
        return run

    def take_secrets(self, args: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Put the secrets (the payload) beside the plan of a prepared run; see secret.py."""
        run = self._prepared_run(args)
        try:
            secret.write(run, payload)
        except ValueError as error:
            raise RequestError("bad-secrets", str(error)) from None
        return {}, b""

    def start(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Start a prepared run's keeper; return when its agent has taken over."""
        run = self._prepared_run(args)
        folder = self.prepared[run.id]
        self._keep(run, folder.number)
        del self.prepared[run.id]
        self._let_cards_go(run.id)
        folder.release()
        self._make_spare(run)
        return {"run": run.id}, b""

    def hand_over(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Leave a prepared run to the container that the client starts next: from here on it is not cleared away."""
        run = self._prepared_run(args)
        self.handed_over[run.id] = self.prepared.pop(run.id)
        self._make_spare(run)
        return {}, b""

    def take_back(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Take back a run whose container could not begin and is gone: it is cleared away with this connection.

        The answer says whether it is; of a run that was never handed over it is, too.
        """
        run = self.run(args)
        run_fate = run_state.fate_of(run)
        run_fate.forget(run)
        if run.id in self.handed_over and run_fate.is_removed(run):
            self.prepared[run.id] = self.handed_over.pop(run.id)
        return {"taken": run.id in self.prepared}, b""

    def await_agent(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Wait for the agent of a run that was handed over; return whether it has come."""
        run = self.run(args)
        folder = self.handed_over.get(run.id)
        if folder is None:
            raise RequestError("not-prepared", "run %s was not handed over here" % run.id)
        deadline = time.monotonic() + min(float(args.get("wait_s", START_S)), START_S)
        while not self._is_taken_over(run, folder.number):
            if time.monotonic() >= deadline or self.wire.has_input(POLL_S):
                return {"came": False}, b""
        del self.handed_over[run.id]
        self._let_cards_go(run.id)
        folder.release()
        return {"came": True}, b""

    @staticmethod
    def _is_taken_over(run: Run, after: int) -> bool:
        last = run.last()
        return last is not None and last.number > after and os.path.exists(last.attempt)

    def hold(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Take, or let go, a lock of this host by name, for as long as this client is here; return whether it is held."""
        name = str(args.get("name"))
        if not LOCK_NAME.fullmatch(name):
            raise RequestError("bad-lock", "%r is no lock" % name)
        if args.get("release") is True:
            self._drop_unsealed(name)
            lock = self.held.pop(name, None)
            if lock is not None:
                lock.release()
            return {"held": False}, b""
        folder = os.path.join(self.root, "hosts", process.host_id(), "locks")
        os.makedirs(folder, exist_ok=True)
        lock = self.held.get(name) or Lock.take(os.path.join(folder, name), 0.0)
        if lock is not None:
            self.held[name] = lock
        return {"held": lock is not None, "root": self._root_label()}, b""

    def _root_label(self) -> str:
        """Return what marks a container or an image as of this root: the host's id and the root's path."""
        return "%s:%s" % (process.host_id(), self.root)

    def build(self, args: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Build an image while the client listens; see image_build.py."""
        try:
            return image_build.build(args, payload, self.wire), b""
        except (image_build.BuildError, ValueError) as error:
            raise RequestError("bad-build", str(error)) from None
        except attending.CommandError as error:
            raise RequestError(error.code, str(error)) from None

    def environment(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Say whether an environment is there, to whoever has a run that names it."""
        path = self._environment(args)
        with self.store.shared():  # a `gc` before us has removed it, one after us knows the run
            return {"there": environment_build.is_whole(path)}, b""

    def make_environment(self, args: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Make an environment, whose lock the client holds, while it listens; see environment_build.py.

        It counts once it is sealed. Until then it goes with its lock.
        """
        path, name = self._environment(args), environment_build.lock_of(str(args.get("name")))
        if name not in self.held:
            raise RequestError("not-held", "%s is not held here" % name)
        self.unsealed[name] = (path, {})
        try:
            answer = environment_build.make(path, args, payload, self.held[name], self.wire)
        except (environment_build.MakingError, ValueError) as error:
            raise RequestError("bad-environment", str(error)) from None
        except attending.CommandError as error:
            raise RequestError(error.code, str(error)) from None
        self.unsealed[name] = (path, answer.get("packages") or {})
        return answer, b""

    def seal_environment(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Make an environment count that was made on this connection."""
        name = environment_build.lock_of(str(args.get("name")))
        path, packages = self.unsealed.get(name, ("", {}))
        if not packages:
            raise RequestError("not-made", "%s was not made here" % name)
        environment_build.seal(path, packages)
        del self.unsealed[name]
        return {}, b""

    def _environment(self, args: dict[str, Any]) -> str:
        try:
            return environment_build.path_of(self.root, args.get("name"))
        except environment_build.MakingError as error:
            raise RequestError("bad-environment", str(error)) from None

    def _drop_unsealed(self, name: str) -> None:
        """Remove what was made under a lock and was not sealed: it failed, or does not do."""
        if name in self.unsealed:
            environment_build.remove(self.unsealed[name][0])
            del self.unsealed[name]

    def _make_spare(self, run: Run) -> None:
        """Let a process of its own copy the code once more, ahead of the next launch; it is nobody's to wait for."""
        if len(self.offered.pop(run.id, {})) >= SPARE_FILES:
            subprocess.Popen(
                [sys.executable, "-I", sys.argv[0], "spare", run.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )

    def _keep(self, run: Run, after: int) -> None:
        """Start the keeper in a session of its own and wait for a folder newer than `after`."""
        with open(run.keeper_log, "ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-I", sys.argv[0], "keep", run.path],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={
                    **secret.without(dict(os.environ), read_json(run.plan)),
                    "LAUNCH_TOKEN": read_text(run.token)
                    or "",  # by which it is known for ours, wherever it ends up
                },
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._is_taken_over(run, after):
                return
            if keeper.poll() is not None:
                break
            time.sleep(0.005)
        self._end_keeper(keeper.pid)
        tail = (read_text(run.keeper_log) or "")[-500:]
        raise RequestError("no-start", "the agent of run %s did not start: %s" % (run.id, tail or "no word"))

    def _end_keeper(self, pid: int) -> None:
        """End a keeper whose agent did not come up, with all below it: the run's folder may go now."""

        def targets() -> list[process.Process]:
            keeper = process.find(pid)
            alive = [keeper] if keeper is not None and keeper.letter != "Z" else []
            return alive + process.descendants(pid)

        process.end(targets, "child", KEEPER_GRACE_S)

    # a run that is there

    def runs(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the runs of this host, or those asked for: id, state, reason, step, job."""
        folder = os.path.join(self.root, "runs")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        wanted = args.get("runs")
        runs = [
            Run(os.path.join(folder, name))
            for name in sorted(names)
            if RUN_ID.fullmatch(name) and (wanted is None or name in wanted)
        ]
        states = run_state.states_of(runs)
        return {"runs": [summary(run, states[run.id]) for run in runs]}, b""

    def read(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Return what is new since the client's cursors, waiting for it a while; see run_state.py."""
        run = self.run(args)
        deadline = time.monotonic() + min(float(args.get("wait_s", 0.0)), SILENCE_S / 2)
        while True:
            answer, payload = cursors.read(run, args)
            if payload or answer["changed"] or time.monotonic() >= deadline or self.wire.has_input(POLL_S):
                return answer, payload

    def wish(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Write a wish to stop or cancel, and wake whoever must heed it; a run that nobody holds is ended here.

        While its engine is silent that is an end in doubt, so it is made only of `cancel`. An agent that the engine brings back all the same finds the end, or the wish.
        """
        run = self.run(args)
        wish = args.get("wish")
        if wish not in ("stop", "cancel"):
            raise RequestError("bad-wish", "%r is no wish" % (wish,))
        state = run_state.state_of(run)["state"]
        if state in TERMINAL:
            return {"state": state}, b""
        self._is_mine(run)
        write_durably(run.wish, str(wish))
        self._wake(run)
        with self._contact(run) as is_ours:
            judged = run_state.state_of(run)
            if is_ours and judged["state"] in ("interrupted", "waiting"):
                reason = "cancelled-by-user" if wish == "cancel" else "stopped-by-user"
                self._settle(run, "cancelled", reason).release()
            elif is_ours and wish == "cancel" and run_state.is_silent(judged):
                evidence = judged["evidence"]
                self._settle(run, "cancel-incomplete", "engine-silent", evidence=evidence).release()
        return {"state": run_state.state_of(run)["state"]}, b""

    def resume(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Go on with a run that was interrupted, or waits: end what is left of it, by proof, and start its keeper again.

        Its cards are leased anew; where another run has them by now, it waits.
        A container is the client's to start: the answer says its place, and `await` waits for its agent. A run whose code never arrived, because its client and our `serve` died while it was sent, has failed.
        """
        run = self.run(args)
        self._is_mine(run)
        _unpack_worker()
        with self._contact(run) as is_ours:
            state = run_state.state_of(run)["state"]
            if is_ours and state in ("interrupted", "waiting"):
                if not os.path.isdir(run.code):
                    self._settle(run, "failed", "never-started").release()
                elif busy := self._lease_again(run):
                    if state != "waiting":
                        self._settle(run, "waiting", "card", evidence=lease.evidence(busy)).release()
                    return {"state": "waiting", "busy": [one._asdict() for one in busy]}, b""
                elif run_state.fate_of(run).is_started_by_client:
                    self.handed_over[run.id] = self._settle(run, "resuming", "agent-lost")
                    gpus = run.cards()
                    return {"state": "resuming", "place": self._place(run), "gpus": gpus}, b""
                else:
                    folder = self._settle(run, "resuming", "agent-lost" if state == "interrupted" else "card")
                    self._keep(run, folder.number)
                    self._let_cards_go(run.id)
                    folder.release()
        return {"state": run_state.state_of(run)["state"]}, b""

    def _lease_again(self, run: Run) -> list[lease.Busy]:
        """Lease cards for a run that is to go on; return who has them where they are not to be had."""
        taken = lease.take_again(run, wait_s=lease.LEAVING_S)
        if taken.gpus:
            self.cards[run.id] = taken
            return []
        return taken.busy

    @contextlib.contextmanager
    def _contact(self, run: Run) -> Iterator[bool]:
        """Let one client at a time judge a run that nobody holds; yield whether it is this one."""
        lock = Lock.take(run.contact_lock, CONTACT_S)
        run_state.fate_of(run).forget(run)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def _is_mine(self, run: Run) -> None:
        """Refuse to judge a run whose record was made on another host (homes are shared)."""
        theirs = run_state.host_of(run)
        if theirs != process.host_id():
            raise RequestError("other-host", "run %s belongs to another host (id %s)" % (run.id, theirs))

    def _settle(self, run: Run, state: str, reason: str, **more: Any) -> Folder:
        """Write a contact folder for a run that nobody holds, after ending its leftovers; return it, still held."""
        last = run.last()
        judged = run_state.state_of(run)
        folder = run.new_folder()
        shows_processes = run_state.fate_of(run).shows_processes
        token = read_text(run.token) if shows_processes else None
        ended = process.end(lambda: process.with_token(token), "token", 5.0) if token else []
        previous = (
            {
                "folder": last.number,
                "state": last.read_state().get("state"),
                "ended": ended,
                **({} if shows_processes else {"evidence": judged.get("evidence")}),
            }
            if last
            else None
        )
        record = {
            "version": VERSION,
            "run": run.id,
            "kind": "contact",
            "agent_folder": os.path.dirname(os.path.abspath(sys.argv[0])),
            "folder": folder.number,
            "time": time.time(),
            "host_id": process.host_id(),
            "boot_id": process.boot_id(),
            "previous": previous,
        }
        write_durably(folder.attempt, strict_json.encode(record) + "\n")
        event = {
            "version": VERSION,
            "kind": "state",
            "time": time.time(),
            "values": {"state": state, "reason": reason, "ended": ended},
        }
        write_durably(folder.events, strict_json.encode(event) + "\n")
        if state in TERMINAL:
            secret.erase(run)
        folder.write_state(state, reason, **more)
        if state in TERMINAL:
            with contextlib.suppress(OSError):  # a sweep removes them, and nobody takes them for held
                lease.give_back(run)
        return folder

    def _wake(self, run: Run) -> None:
        """Signal the run's agent, so that it reads the wish at once; the proof is its record and its lock."""
        last = run.last()
        if last is None or not last.is_locked():
            return
        if not run_state.fate_of(run).shows_processes:
            return  # its agent looks at the wish by itself
        record = read_json(last.attempt)
        agent = record.get("agent") or {}
        found = process.find(int(agent.get("pid", 0)))
        same_boot = record.get("boot_id") == process.boot_id()
        if found is not None and same_boot and found.start == agent.get("start"):
            process.send(found, signal.SIGTERM)
            process.send(found, signal.SIGCONT)  # for one that was stopped: it hears nothing else

    def execute(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Run a command beside a run while the client listens; see command.py."""
        run = self.run(args)
        self._is_mine(run)
        try:
            return command.execute(run, args.get("command"), self.wire), b""
        except attending.CommandError as error:
            raise RequestError(error.code, str(error)) from None

    def remove(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Remove a run that has ended; return the bytes that this frees.

        With `force`, a run whose silent engine lets nobody say whether it has ended is cancelled before.
        """
        run = self.run(args)
        self._is_mine(run)
        if args.get("force") is True and run_state.is_silent(run_state.state_of(run)):
            self.wish({"run": run.id, "wish": "cancel"}, b"")
        return {"bytes": garbage.remove_run(run, even_artifacts=args.get("artifacts") is True)}, b""

    def gc(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Remove what no run here names any more, unless `dry_run`; return what it was.

        What an engine holds is the client's to remove: `runs` are those whose containers stay, `images` those that a run
        names, `root` what marks both as ours.
        """
        with self.store.alone():
            items = garbage.garbage(self.root, os.path.dirname(os.path.abspath(sys.argv[0])))
            if args.get("dry_run") is not True:
                garbage.collect(self.root, items)
        runs, images = garbage.needed(self.root)
        return {"items": items, "runs": runs, "images": images, "root": self._root_label()}, b""

    def packages(self, args: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Return what an image once said of its packages (see torch_check.py); with a payload, keep that."""
        found = IMAGE_ID.fullmatch(str(args.get("image")))
        if found is None or len(payload) > MOST_PACKAGES:
            raise RequestError("bad-image", "%r is no image" % args.get("image"))
        path = os.path.join(self.root, "hosts", process.host_id(), "packages", found[1] + ".json")
        if payload:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_durably(path, payload)
        return {"told": read_json(path) or None}, b""

    def sweep(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """End and remove what is ours and unneeded, unless `dry_run`; see leftovers.py.

        What an engine holds is the client's to remove: it names the `runs` of containers, and learns which have ended.
        """
        items = leftovers.sweep(self.root, dry_run=args.get("dry_run") is True)
        names = [str(one) for one in args.get("runs") or [] if RUN_ID.fullmatch(str(one))]
        return {"items": items, "ended": leftovers.ages(self.root, names), "root": self._root_label()}, b""

    def pull(self, args: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Send the run's artifacts: chunk by chunk a tar stream, then what it held and what was left out."""
        run = self.run(args)
        manifest, left_out = shipping.send_artifacts(run, self.wire)
        return {"files": manifest, "left_out": left_out}, b""


def _unpack_worker() -> None:
    """Put the worker module beside the agent's file, alone in the folder that goes on PYTHONPATH."""
    agent = os.path.abspath(sys.argv[0])
    target = os.path.join(os.path.dirname(agent), "worker", "launcher_worker.py")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with zipfile.ZipFile(agent) as archive:
        source = archive.read("launcher_worker.py")
    try:
        with open(target, "rb") as file:
            is_whole = file.read() == source
    except FileNotFoundError:
        is_whole = False
    if not is_whole:
        write_durably(target, source)
