"""Print what a torch wheel has code for, without a card and without installing it, to write rows of torch.toml.

python images/wheel.py torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl
python images/wheel.py https://…/torch-2.13.0%2Bcu126-cp312-….whl       (reads a few MB of it if its server supports ranges)
"""

from __future__ import annotations

import io
import re
import sys
import urllib.request
import zipfile

# The library behind torch._C._cuda_getArchFlags() contains the architectures.
_LIBRARY = "torch/lib/libtorch_python.so"
_FLAGS = re.compile(rb"sm_\d{2,3}[af]?(?: (?:sm|compute)_\d{2,3}[af]?)*\0")
_CUDA = re.compile(
    r"Requires-Dist: (?:nvidia-cuda-runtime(?:-cu\d+)?|cuda-toolkit\[[^\]]*\]) ?\(?==([0-9.]+)"
)
_TRITON = re.compile(r"Requires-Dist: (?:pytorch-)?triton ?\(?[~=]=([0-9.]+)")


class Remote(io.RawIOBase):
    """A file at a URL, of which only the requested parts are fetched."""

    def __init__(self, url: str) -> None:
        """Request its size. Raises OSError if the server does not support ranges."""
        self._url, self._at = url, 0
        with self._get(0, 0) as answer:
            content_range = re.fullmatch(r"bytes \d+-\d+/(\d+)", answer.headers.get("Content-Range") or "")
        if content_range is None:
            raise OSError(f"{url}: the server does not support ranges: download it first")
        self._size = int(content_range[1])

    def _get(self, first: int, last: int) -> io.BufferedIOBase:
        request = urllib.request.Request(self._url, headers={"Range": f"bytes={first}-{last}"})
        return urllib.request.urlopen(request)  # type: ignore[no-any-return] # it is untyped

    def seekable(self) -> bool:
        """Say that it can be read anywhere."""
        return True

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position; return it."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override] # any buffer that can be written
        """Fetch what fits into a buffer; return how much that is."""
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        with self._get(self._at, self._at + wanted - 1) as answer:
            data = answer.read()
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def describe(place: str) -> dict[str, str]:
    """Return version, CUDA, triton, Python and architectures of a wheel, by a path or a URL. Raises OSError, BadZipFile."""
    source = io.BufferedReader(Remote(place), 1 << 20) if place.startswith(("http://", "https://")) else place
    with zipfile.ZipFile(source) as wheel:
        about = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = wheel.read(about).decode()
        library = wheel.read(_LIBRARY)
    flags = max(_FLAGS.findall(library), key=len, default=b"").rstrip(b"\0").decode()
    codes = [f"{int(code) // 10}.{int(code) % 10}" for code in re.findall(r"sm_(\d+)", flags)]
    ptx = [f"{int(code) // 10}.{int(code) % 10}" for code in re.findall(r"compute_(\d+)", flags)]
    return {
        "torch": _found(r"^Version: (\S+)", metadata),
        "cuda": _found(_CUDA.pattern, metadata),
        "triton": _found(_TRITON.pattern, metadata),
        "python": _found(r"^Requires-Python: (\S+)", metadata),
        "architectures": " ".join(codes) or "none",
        "ptx": " ".join(ptx) or "none named",
    }


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else "unknown"


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    for one in sys.argv[1:]:
        print("  ".join(f"{name} {value}" for name, value in describe(one).items()))
