"""The kinds of host, one package each: a machine, a Slurm cluster, an account of Kaggle's, one where machines are rented.

`registry.backend_of(host)` is the front door: it loads the package of a host's kind and returns its `backend.Backend`. Shared
code asks that for what it needs, and never for the kind.
"""
