"""What a session of the stand-in for Kaggle finds: two simulated T4, and a Python whose torch has code for them.

That torch only names itself, as the one of Kaggle's image does, and starts ranks. No training uses it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from testbed.cards import Cards
from testbed.kaggle_session import PATH
from testbed.kaggle_state import Habits

TORCH = {
    "__init__.py": """\
__version__ = "2.10.0+cu128"
class version:
    cuda = "12.8"
class _C:
    _cuda_getArchFlags = staticmethod(lambda: "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120")
""",
    "distributed/__init__.py": """\
import socket
class TCPStore:
    def __init__(self, host, port, *, master_listen_fd, **options):
        self.port, self.listener = port, socket.socket(fileno=master_listen_fd)
""",
    "distributed/run.py": """\
import os, subprocess, sys
def main(words):
    count = int(os.environ["PET_NPROC_PER_NODE"])
    of = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)} for rank in range(count)]
    ranks = [subprocess.Popen([sys.executable, *words], env={**os.environ, **variables}) for variables in of]
    sys.exit(max(abs(rank.wait()) for rank in ranks))
""",
}


def habits_with_two_t4(folder: Path) -> Habits:
    """Return habits of sessions that have two T4; what they see of them is put into a folder."""
    cards = Cards(folder / "cards")
    cards.put("t4", "t4")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "image"], check=True)
    (site,) = (folder / "image" / "lib").glob("python*/site-packages")
    for name, text in TORCH.items():
        (site / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (site / "torch" / name).write_text(text)
    path = os.pathsep.join([str(cards.folder), PATH])
    return Habits(python=str(folder / "image" / "bin" / "python"), variables={"PATH": path})
