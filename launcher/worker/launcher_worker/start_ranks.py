"""Start the ranks of this node by torchrun: `python -m launcher_worker.start_ranks train.py ...`.

torchrun reads its options from the variables PET_*. launcher uses torchrun's static backend, in which the
processes of torchrun exchange JSON. With the backend `c10d`, which `--standalone` uses too, torchrun's agents
unpickle values from a store: anyone who can reach the store can write a value and so run code in these
agents. The static backend by itself would open its store on all addresses of this machine. So this module
opens the store, only on the address that the ranks connect to.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, List

LOOPBACK = "127.0.0.1"


def start_ranks(arguments: List[str]) -> None:
    """Run `python ARGUMENTS` as each rank of this node, and wait; raises torchrun's SystemExit or error."""
    from torch.distributed.run import main as torchrun

    store = None
    if int(os.environ.get("PET_NNODES", "1")) == 1:
        store = open_store(LOOPBACK, 0)  # port 0: the kernel chooses a free port
        os.environ["PET_MASTER_PORT"] = str(store.port)
        if sys.platform == "linux":  # gloo would listen on the address of this machine's name
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    elif os.environ["PET_NODE_RANK"] == "0":
        store = open_store(os.environ["PET_MASTER_ADDR"], int(os.environ["PET_MASTER_PORT"]))
    torchrun(["-m", "launcher_worker", *arguments])
    del store  # the store must live until here: torchrun finds it by its port, and uses it


def open_store(host: str, port: int) -> Any:
    """Return a TCPStore that listens only on a host's address.

    It listens on all addresses if a host name has a loopback address, which other nodes cannot reach. Raises
    OSError if the port is taken, or if the host's address does not belong to this machine.
    """
    from torch.distributed import TCPStore

    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    address = str(place[0])
    if host != LOOPBACK and (address.startswith("127.") or address == "::1"):
        address = ""  # e.g. Debian's 127.0.1.1: other nodes have another address for this node
    listener = socket.create_server((address, port), family=family)
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


if __name__ == "__main__":
    start_ranks(sys.argv[1:])
