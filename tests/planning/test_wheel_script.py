"""The script that reads a wheel's own list of architectures: from a file, or a few pieces of one behind a URL."""

import re
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from launcher.base.resources import data_folder

METADATA = """\
Metadata-Version: 2.1
Name: torch
Version: 2.13.0+cu126
Requires-Python: >=3.10
Requires-Dist: nvidia-cuda-runtime-cu12==12.6.77; platform_system == "Linux"
Requires-Dist: triton==3.7.1; platform_system == "Linux"
"""
SAID = "torch 2.13.0+cu126  cuda 12.6.77  triton 3.7.1  python >=3.10  architectures {}  ptx {}\n"
NOISE = bytes(range(1, 256)) * 20_000


def make(path, flags):
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("torch/lib/libtorch_cuda.so", NOISE)
        wheel.writestr("torch/lib/libtorch_python.so", b"\0\0sm_1\0" + flags + b"\0\0at::cuda")
        wheel.writestr("torch-2.13.0+cu126.dist-info/METADATA", METADATA)
    return path


def read(*words):
    script = data_folder("images") / "wheel.py"
    return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("flags", "codes", "ptx"),
    [
        (b"sm_50 sm_60 sm_90", "5.0 6.0 9.0", "none named"),
        (b"sm_75 sm_120 compute_120", "7.5 12.0", "12.0"),
        (b"sm_90a sm_100f", "9.0 10.0", "none named"),
        (b"no code", "none", "none named"),
    ],
)
def test_a_wheel_tells_what_it_has_code_for(tmp_path, flags, codes, ptx):
    """Version, CUDA, triton and Python too; nothing is imported."""
    assert read(make(tmp_path / "torch.whl", flags)).stdout == SAID.format(codes, ptx)


def test_of_a_wheel_behind_a_url_only_what_is_needed_is_fetched(tmp_path):
    """The list of its files, and two of them."""
    data = make(tmp_path / "torch.whl", b"sm_60").read_bytes()
    sent = []

    class Ranges(BaseHTTPRequestHandler):
        def do_GET(self):
            first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
            piece = data[first : last + 1]
            sent.append(len(piece))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.send_header("Content-Length", str(len(piece)))
            self.end_headers()
            self.wfile.write(piece)

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        threading.Thread(target=server.serve_forever).start()
        said = read(f"http://127.0.0.1:{server.server_address[1]}/torch.whl")
        server.shutdown()
    assert said.stdout == SAID.format("6.0", "none named"), said.stderr
    assert sum(sent) < len(data) / 2


def test_without_a_wheel_it_says_how_it_is_used():
    """And fails."""
    done = read()
    assert done.returncode == 1
    assert "python images/wheel.py torch-" in done.stderr
