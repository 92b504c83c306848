"""What a script does about ranks, by its source; and what a plan for two cards makes of it."""

import pytest
from testbed.profiles import profile

from launcher.agent.training.variables import is_one_rank
from launcher.backends.registry import backend_of
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.backends.slurm.slurm_job import submission
from launcher.backends.slurm.slurm_planning import resources_of
from launcher.check.reading.module import Module
from launcher.check.reading.rank_use import rank_use
from launcher.check.reading.script_use import script_use
from launcher.planning.assembly import plan
from launcher.planning.host_resources import MACHINE
from launcher.values.host import Host
from launcher.values.job import BatchSize, Job
from launcher.values.plan import RankUse, ScriptUse
from launcher.values.slurm_settings import SlurmSettings

COMMAND = ("python", "train.py")
ALPACA = """
import os
from transformers import AutoModelForCausalLM, Trainer
device_map = "auto"
if int(os.environ.get("WORLD_SIZE", 1)) != 1:
    device_map = {"": int(os.environ.get("LOCAL_RANK") or 0)}
AutoModelForCausalLM.from_pretrained("m", device_map=device_map)
"""
IMAGENET = """
import os, torch, torch.multiprocessing as mp, torch.distributed as dist
def worker(gpu, args):
    rank = int(os.environ["RANK"]) if args.env else gpu
    dist.init_process_group("nccl", world_size=2, rank=rank)
    model = torch.nn.parallel.DistributedDataParallel(m) if args.ddp else torch.nn.DataParallel(m)
mp.spawn(worker, nprocs=2)
"""

TAKEN = {
    "Trainer": "from transformers import Trainer, TrainingArguments\nTrainer(args=TrainingArguments('out')).train()",
    "Trainer of one's own": "import transformers\nclass Mine(transformers.Trainer): pass\nMine().train()",
    "parsed arguments": "from transformers import HfArgumentParser, Seq2SeqTrainingArguments as S\nHfArgumentParser(S)",
    "trl": "from trl import SFTTrainer\nSFTTrainer('m', train_dataset=d).train()",
    "trl in a function": "def main():\n    from trl.trainer import GRPOTrainer\n    GRPOTrainer('m')",
    "Accelerator": "from accelerate import Accelerator\nAccelerator().prepare(m)",
    "worker's Trainer": "import launcher_worker as worker\nworker.training_arguments()",
    "worker's Accelerator": "from launcher_worker import accelerator\naccelerator()",
    "process group": "import torch.distributed as dist\ndist.init_process_group('nccl')",
    "process group by its full name": "import torch\ntorch.distributed.init_process_group(backend='gloo')",
    "nanoGPT": "import os\nddp = int(os.environ.get('RANK', -1)) != -1\nlocal = int(os.environ['LOCAL_RANK'])",
    "getenv": "from os import getenv\nworld = int(getenv('WORLD_SIZE', '1'))",
    "a rank that must be there": "import os\nrank = int(os.environ['RANK'])",
    "in": "import os\nif 'WORLD_SIZE' in os.environ: pass",
    "a helper": "from mine import env_int\nrank = env_int('LOCAL_RANK')",
    "rank from Slurm or torchrun": "import os, torch.distributed as dist\nif 'SLURM_PROCID' in os.environ:\n    os.environ['RANK'] = os.environ['SLURM_PROCID']\nlocal = os.environ['LOCAL_RANK']\ndist.init_process_group('nccl')",
    "deepspeed": "import deepspeed\nengine, *_ = deepspeed.initialize(model=m)",
    "a device by rank": ALPACA,
    "placed on its own card": "from accelerate import PartialState\nload('m', device_map={'': PartialState().process_index})",
    "pip's accelerate": "import subprocess\nfrom accelerate import Accelerator\nsubprocess.run(['pip', 'install', 'accelerate'])\nAccelerator()",
    "git": "import subprocess\nfrom trl import SFTTrainer\nsubprocess.check_output(['git', 'rev-parse'])\nSFTTrainer()",
    "workers for data": "import torch.multiprocessing as mp\nfrom accelerate import Accelerator\nmp.set_start_method('spawn')\nAccelerator()",
    "unwrapping": "import torch.nn as nn\nfrom accelerate import Accelerator\nif isinstance(m, nn.DataParallel): m = m.module\nAccelerator()",
}  # fmt: skip
STARTED = {
    "spawn": "import torch.multiprocessing as mp\nmp.spawn(main, nprocs=2)",
    "spawn by its name": "from torch.multiprocessing import spawn\nspawn(main, nprocs=2)",
    "spawn and an Accelerator": "import torch\nfrom accelerate import Accelerator\ntorch.multiprocessing.spawn(main)\nAccelerator()",
    "imagenet": IMAGENET,
    "notebook_launcher": "from accelerate import notebook_launcher\nnotebook_launcher(main, num_processes=2)",
    "torchrun in a list": "import subprocess, sys\nwords = [sys.executable, '-m', 'torch.distributed.run', 'real.py']\nsubprocess.run(words)",
    "torchrun by a shell": "import os\nos.system(f'torchrun --nproc-per-node {n} real.py')",
    "accelerate launch": "import subprocess\nsubprocess.check_call(['accelerate', 'launch', 'real.py'])",
    "torchrun's main": "from torch.distributed.run import main\nmain(['real.py'])",
    "Lightning": "import lightning as L\nL.Trainer(max_epochs=1).fit(model)",
    "Lightning by its old name": "from pytorch_lightning import Trainer\nTrainer(accelerator='auto', devices='auto')",
    "Lightning's command line": "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model)",
}  # fmt: skip
NONE = {
    "plain": "import torch\nmodel = torch.nn.Linear(2, 2).cuda()",
    "words about ranks": '"""Run: torchrun train.py, with RANK and WORLD_SIZE."""\nprint("torchrun", "LOCAL_RANK")',
    "rank of a LoRA": "import os\nr = int(os.environ.get('RANK', '8'))",
    "spread": "from transformers import AutoModel\nAutoModel.from_pretrained('m', device_map='auto')",
    "spread, with a Trainer": "from transformers import AutoModel, Trainer\nTrainer(AutoModel.from_pretrained('m', device_map='balanced'))",
    "spread by keywords": "from trl import SFTTrainer\nSFTTrainer('m', model_init_kwargs={'device_map': 'auto'})",
    "spread by default": "from transformers import Trainer\ndef load(name, device_map='auto'): pass\nTrainer(load('m'))",
    "spread by an option": "import argparse\nfrom trl import SFTTrainer\nargparse.ArgumentParser().add_argument('--device_map', default='auto')",
    "DataParallel": "import torch\nmodel = torch.nn.DataParallel(m).cuda()",
    "a card of its own": "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\nfrom transformers import Trainer\nTrainer(m).train()",
    "rank of its own": "import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=1)",
    "rank set before": "import os, torch.distributed as dist\nos.environ['RANK'] = '0'\nos.environ['WORLD_SIZE'] = '1'\ndist.init_process_group('gloo')",
    "precision of the worker alone": "import launcher_worker as worker\nwith worker.autocast(): pass",
    "a Trainer of its own": "from mine import Trainer\nTrainer().train()",
    "an import alone": "from transformers import Trainer\nprint('hi')",
}  # fmt: skip
SCRIPTS = [
    (kind, name, source)
    for kind, table in (("taken", TAKEN), ("started", STARTED), ("none", NONE))
    for name, source in table.items()
]


def use_of(source, command=COMMAND):
    return rank_use(command, [Module.of("train.py", source.encode())])


@pytest.mark.parametrize(("kind", "source"), [pytest.param(k, s, id=f"{k}: {n}") for k, n, s in SCRIPTS])
def test_a_script_is_started_for_each_card_only_if_it_takes_its_rank(kind, source):
    """Only of `taken` are there several processes; what starts its own, or spreads its model, is started once."""
    found = use_of(source)
    assert found.kind == kind, found.why


@pytest.mark.parametrize(
    ("words", "kind", "why"),
    [
        ("python train.py", "taken", "lib/loop.py has accelerate.Accelerator"),
        ("python3 -u train.py --lr 1", "taken", "lib/loop.py has accelerate.Accelerator"),
        ("python -m lib.loop", "taken", "lib/loop.py has accelerate.Accelerator"),
        ("python plain.py", "none", "plain.py takes no rank from its environment"),
        ("python -m axolotl.cli.train", "none", "axolotl.cli.train cannot be read here"),
        ("python -m torch.distributed.run train.py", None, None),
        ("python -m accelerate.commands.launch train.py", None, None),
        ("torchrun train.py", None, None),
        ("sh -c 'python train.py'", None, None),
    ],
)
def test_a_script_is_read_with_the_modules_that_it_imports(tmp_path, words, kind, why):
    """What cannot be read is one process: two that train into one folder are worse than an idle card."""
    (tmp_path / "train.py").write_text("from lib.loop import train\ntrain()")
    (tmp_path / "plain.py").write_text("print('hi')")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/loop.py").write_text("from accelerate import Accelerator\ndef train(): Accelerator()")
    found = script_use(Job(name="x", command=words.split()), tmp_path).ranks
    assert found == (RankUse(kind=kind, why=why) if kind else None)
    assert is_one_rank(words.split()) == (kind is not None)


def planned(source, command=COMMAND, name="t4x2", nodes=None):
    """The plan of a script for the cards of a profile, and what the gate says of its processes."""
    use = ScriptUse((), use_of(source, command))
    card, host = profile(name), Host(name="lab", address="lab")
    resources, runtime = MACHINE, "native"
    if nodes:
        asked = SlurmSettings(nodes=nodes)
        host = SlurmHost(name="hive", address="hive", slurm=asked)
        resources, runtime = resources_of(submission(asked, (card,), None, is_rehearsed=False)), "slurm"
    job = Job(name="train", command=command, batch=BatchSize(global_size=64))
    made = plan(card, host, job, script=use, resources=resources, runtime=runtime)
    found = backend_of(host).planning.check(made, None, host)
    return made, [one for one in found if one.code == "one-process"]


def test_two_cards_and_one_process_are_what_the_plan_says():
    """Both cards are leased, the batch is not divided, and a note says why and what to type for one process a card."""
    made, (note,) = planned(NONE["plain"])
    assert (made.split.ranks, made.split.global_batch, [one.ranks for one in made.nodes]) == (1, 64, [1])
    assert made.allocation.cards == 2
    assert note.level == "note"
    assert (
        note.message
        == "'python' is started once and sees 2 cards: train.py takes no rank from its environment"
    )
    assert "--gpus 1" in note.mend
    assert "-- torchrun train.py …" in note.mend


def test_a_script_that_starts_its_own_processes_is_told_so():
    """The batch is divided among them, as it is for torchrun."""
    made, (note,) = planned(STARTED["spawn"])
    assert made.split.ranks == 2
    assert note.message.endswith("train.py starts its processes itself: torch.multiprocessing.spawn")
    made, notes = planned(TAKEN["Trainer"])
    assert (made.split.ranks, notes) == (2, [])
    assert planned(NONE["plain"], name="t4")[1] == []


@pytest.mark.parametrize(("kind", "level"), [("taken", None), ("started", "note"), ("none", "refuse")])
def test_on_several_nodes_one_process_is_refused(kind, level):
    """It would train on each of them, into one folder."""
    source = {"taken": TAKEN["Trainer"], "started": STARTED["spawn"], "none": NONE["spread"]}[kind]
    _, found = planned(source, name="l40s", nodes=2)
    assert [one.level for one in found] == ([level] if level else [])
    if level == "refuse":
        assert "each of the 2 nodes would train all of it, into one folder" in found[0].message
        assert "--set slurm.nodes=1" in found[0].mend
