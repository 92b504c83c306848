"""The variables of this process that a run on this machine inherits: those of a list, or all."""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher.values.host import Host

LISTED = {
    "you and the system": "HOME USER LOGNAME SHELL PATH TMPDIR TERM TZ LANG LANGUAGE LC_* XDG_*",
    "proxies, certificates": (
        "http_proxy https_proxy ftp_proxy all_proxy no_proxy SSL_CERT_* REQUESTS_CA_BUNDLE CURL_CA_BUNDLE"
    ),
    "cards": "CUDA_* CUDNN_* CUBLAS_* NVIDIA_* NCCL_* HIP_* HSA_* ROCM_* ROCR_* LD_LIBRARY_PATH LD_PRELOAD DYLD_*",
    "Python and packages": "PYTHON* VIRTUAL_ENV CONDA_* PIP_* UV_*",
    "libraries": (
        "HF_* TRANSFORMERS_* TOKENIZERS_PARALLELISM TORCH_* TORCHINDUCTOR_* PYTORCH_* TRITON_* OMP_* GOMP_* KMP_* MKL_* "
        "OPENBLAS_* NUMEXPR_*"
    ),
    "the engine": "DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG DOCKER_CERT_PATH DOCKER_TLS_VERIFY DOCKER_API_VERSION BUILDX_* BUILDKIT_*",
    "Slurm": "SLURM_*",
}
"""The list, as shell patterns. Case matters, except for the proxies. docs/variables.md shows it."""
_OURS = "LAUNCH_"
"""The prefix of variables between launcher's own processes, e.g. the token of a run that starts another one.

A training gets its own values.
"""
_PLAIN = ("HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN")
"""Variables with a name like a credential's that hold none."""
_CREDENTIAL = re.compile(
    r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASS|JWT|AUTH|CREDENTIAL)S?(?:_|$)", re.IGNORECASE
)


_WORDS = [word for words in LISTED.values() for word in words.split()]
_WORDS += [word.upper() for word in _WORDS if word.endswith("_proxy")]
_NAMES = {word for word in _WORDS if not word.endswith("*")}
_STARTS = tuple(word[:-1] for word in _WORDS if word.endswith("*"))


def of_local_runs(host: Host, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that this machine's agent, and the runs that it starts, inherit."""
    return {name: value for name, value in variables.items() if is_inherited(host, name)}


def is_inherited(host: Host, name: str) -> bool:
    """Whether a run on this machine inherits a variable.

    By default, a run inherits a variable if the list has its name and the name is not like a credential's.
    """
    if host.variables == "inherit" or name in _PLAIN or name.startswith(_OURS):
        return True
    return (name in _NAMES or name.startswith(_STARTS)) and _CREDENTIAL.search(name) is None
