"""The kinds of host, one package each: a machine, a Slurm cluster, a Kaggle account, a Lambda Cloud account.

`registry.backend_of(host)` is the front door: it loads the package of a host's kind and returns its
`Backend`. `runtimes` does the same for runtimes. Shared code asks a backend for capabilities, never for the
kind.
"""

FRONT_DOOR = (
    "base.backend",
    "base.probing",
    "base.rental_choice",
    "base.runtime",
    "base.session_preview",
    "kinds",
    "registry",
    "runtimes",
)
"""The modules that other packages may import."""
