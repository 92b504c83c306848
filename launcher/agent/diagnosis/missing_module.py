"""The package to install for a missing module: its distribution often has another name than the module.

Sources: the top-level modules of these distributions' wheels on PyPI.
"""

from __future__ import annotations

import re
from typing import Dict, Optional, Tuple

_MISSING = (
    re.compile(r"No module named '?([A-Za-z_]\w*)((?:\.\w+)*)'?"),
    re.compile(r"requires the (\w+) library but it was not found"),
    re.compile(r"No package metadata was found for ([A-Za-z][\w.-]*)"),
    re.compile(r"requires `?pip install ([A-Za-z][\w.-]*)"),
    re.compile(r"Requirement '([A-Za-z][\w.-]*)[^']{0,80}' not met"),  # Lightning
)
DISTRIBUTIONS: Dict[str, Optional[str]] = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "apex": None,
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "clip": "git+https://github.com/openai/CLIP",
    "community": "python-louvain",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "hydra": "hydra-core",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "lightning_fabric": "lightning",
    "google": "protobuf",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "open_clip": "open_clip_torch",
    "osgeo": "gdal",
    "pkg_resources": "setuptools",
    "pl_bolts": "lightning-bolts",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "pynvml": "nvidia-ml-py",
    "ruamel": "ruamel.yaml",
    "segment_anything": "git+https://github.com/facebookresearch/segment-anything",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "socks": "pysocks",
    "speech_recognition": "SpeechRecognition",
    "umap": "umap-learn",
    "usb": "pyusb",
    "websocket": "websocket-client",
    "xdg": "pyxdg",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""The distributions by module, where the names differ; None if no package on an index has the module."""
OWN = frozenset(
    (
        "config", "configs", "common", "data", "dataset", "helpers", "layers", "lib", "losses", "model", "models",
        "modules", "nets", "network", "networks", "options", "scripts", "src", "tools", "train", "trainer", "util", "utils",
    )
)  # fmt: skip
"""Names that people give to their own modules."""
_NAMESPACES = frozenset(
    ("azure", "backports", "google", "jaraco", "mpl_toolkits", "nvidia", "opentelemetry", "ruamel")
)
"""Modules that several packages share: one may be there without the other."""


def words(line: str) -> Optional[Tuple[str, str]]:
    """Return cause and advice for a line that names a missing module or package; None if it names none."""
    found = next((match for match in (pattern.search(line) for pattern in _MISSING) if match), None)
    if found is None or found[1].startswith("_"):
        return None
    module = found[1]
    why = "no package in the job's environment has the module '%s'" % module
    if module in OWN:
        return (
            "the script's own module '%s' is not where Python looks" % module,
            "its folder must be the one that the command is started in, or   launch -e PYTHONPATH=FOLDER …",
        )
    name = DISTRIBUTIONS.get(module, module.replace("_", "-"))
    inner = found[2] if found.re is _MISSING[0] else ""
    if inner and name is not None and module not in _NAMESPACES:  # else Python names the first module alone
        return (
            "the installed '%s' has no module '%s%s': it is newer or older than its caller expects"
            % (module, module, inner),
            "a version that has it   launch … --with '%s<…'     the caller's release notes name it; or a newer caller"
            % name,
        )
    if name is None:
        return why, "no package index has it: install it on the host, into an environment of your own"
    package = "'%s @ %s'" % (module, name) if name.startswith("git+") else name
    return why, "launch --with %s …     or a line in requirements.txt" % package
