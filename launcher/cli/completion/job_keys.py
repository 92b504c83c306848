"""The keys for `--set`, each with a line of help for shell completion. See docs/keys.md for their full description."""

from __future__ import annotations

_FLAG = ("true", "false")

ABOUT = {
    "steps": "optimizer steps",
    "batch.global": "examples per step, the same on every card",
    "batch.micro": "the largest micro-batch",
    "model": "a path, host:PATH, or a name for the script",
    "teacher": "of a distillation: a path, host:PATH, or a name for the script",
    "method": "train an adapter, one over a base in 4 bits, or all weights",
    "data.train": "a path, host:PATH, or a name for the script",
    "data.eval": "a path, host:PATH, or a name for the script",
    "seed": "the seed of the data order and of new weights",
    "save_every_steps": "steps between checkpoints",
    "save_every_minutes": "minutes between checkpoints",
    "keep_checkpoints": "how many of the newest stay; 0: the old one goes before the new one is written, which may lose all",
    "checkpoints": "host or pull: a client that follows keeps the newest one too",
    "loader_workers": "processes that load data",
    "attention": "refused where the card cannot run it",
    "compile": "torch.compile",
    "sharding": "whether the script can divide a model among its cards",
    "checkpointing": "auto, true or false: recompute activations, which saves memory and costs a third of the time",
    "attempts": "starts of the training within one run",
    "restart": "allow a second start of a script that does not resume",
    "hang_minutes": "silence that counts as a hang",
    "time_limit_minutes": "after this time the run saves a checkpoint and ends",
    "stop_grace_s": "seconds that a stopping script has to save",
    "outputs": "patterns of the files to download",
    "pull_limit": "size limit of automatic downloads, e.g. 2GB",
    "on_end": "a command or webhook that is called at the end",
    "writable": "patterns of large files that the job changes in place",
    "check": "show the known bugs of the script, refuse them, or do not look",
    "guard": "end a training that looks sick, or only warn",
    "adapt": "the hook gives the script the plan's precision",
    "inject": "the start-up hook observes the Python processes",
    "name": "the job's name",
    "command": "a list of words",
    "code": "the folder that is sent",
    "requirements": "a list of packages, as pip writes them",
    "image": "an image of yours, used as it is",
    "secrets": "a list of names of variables",
    "slurm.partition": "on a Slurm cluster: one partition, or several with commas",
    "slurm.account": "on a Slurm cluster: the account to charge",
    "slurm.qos": "on a Slurm cluster: the quality of service",
    "slurm.time": "on a Slurm cluster: the limit of one start of the job",
    "slurm.nodes": "on a Slurm cluster: the fixed number of nodes",
    "slurm.gres": "on a Slurm cluster: what each node must have",
    "slurm.constraint": "on a Slurm cluster: features of its nodes",
    "slurm.reservation": "on a Slurm cluster: nodes that are set aside",
    "slurm.extra": "on a Slurm cluster: a list of further flags of sbatch",
    "slurm.modules": "on a Slurm cluster: a list of modules to load",
    "slurm.image": "on a Slurm cluster: an image that Apptainer runs the command in",
    "slurm.build": "on a Slurm cluster: login or job, where environments are made",
}
"""The keys of a job with their help, in the order of completion: the keys most often changed come first."""
TABLES = {
    "settings": "of the script",
    "verify": "of the script, while launch verify tries it",
    "variables": "of the job's processes",
}
"""The tables whose keys depend on the job."""
VALUES = {
    "method": ("lora", "qlora", "full"),
    "attention": ("sdpa", "eager", "flash_attention_2"),
    "checkpoints": ("host", "pull"),
    "guard": ("end", "warn"),
    "check": ("off", "warn", "strict"),
    "checkpointing": ("auto", *_FLAG),
    "sharding": _FLAG,
    **dict.fromkeys(("compile", "restart", "adapt", "inject"), _FLAG),
}
"""The keys with a fixed set of values."""
RESUMED = (
    *(
        "steps",
        "batch.micro",
        "checkpointing",
        "save_every_steps",
        "save_every_minutes",
        "keep_checkpoints",
        "checkpoints",
    ),
    *("loader_workers", "attempts", "restart", "hang_minutes", "time_limit_minutes", "stop_grace_s"),
    *("outputs", "pull_limit", "writable", "guard", "adapt", "inject", "on_end"),
    *(key for key in ABOUT if key.startswith("slurm.")),
)
"""The keys that `launch resume` can change. A resumed run keeps the others."""
