"""The programs: what is started, what it needs, which readings its ledger allows, and which end is right."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

from programs import materials
from programs.launching import End, Program
from programs.ledger import Ledger, Reading

Readings = Callable[[Ledger], Iterable[Reading]]
GOOD = End("succeeded", "exit-only")
NO_MODULE = End("failed", "missing-dependency")
OWN_ERROR = End("failed", "user-code-error")
NOT_FOUND = End("failed", "hub-access")
DIVERGED = End("failed", "nan-divergence")


# which readings are right


def nothing(_: Ledger) -> list[Reading]:
    """No reading is right: the program prints none."""
    return []


def logged(ledger: Ledger) -> list[Reading]:
    """What the program gave to its own logger, at that logger's step."""
    return ledger.logged


def each_loss(ledger: Ledger) -> list[Reading]:
    """The loss of each optimizer step, which counts from 1."""
    return [Reading(step, "loss", loss) for step, loss in enumerate(ledger.by_update(), 1)]


def means(every: int, name: str = "loss", *, is_placed: bool = True) -> Readings:
    """Return the mean loss of every so many optimizer steps, at the last of them; without a step if none is printed."""

    def readings(ledger: Ledger) -> list[Reading]:
        losses = ledger.by_update()
        ends = range(every, len(losses) + 1, every)
        return [
            Reading(end if is_placed else None, name, statistics.fmean(losses[end - every : end]))
            for end in ends
        ]

    return readings


def printed(pattern: str) -> Readings:
    """Return what the program's own format of a line says: each group is a metric, `step` its step."""

    def readings(ledger: Ledger) -> list[Reading]:
        found = []
        for match in re.finditer(pattern, ledger.log):
            groups = {name: text for name, text in match.groupdict().items() if text is not None}
            step = int(groups.pop("step")) if "step" in groups else None
            found += [Reading(step, name, float(text)) for name, text in groups.items()]
        return found

    return readings


def spacy_log(ledger: Ledger) -> list[Reading]:
    """What spaCy's own logger wrote, which trains without torch."""
    found = []
    for line in map(json.loads, (ledger.outputs / "log.jsonl").read_text().splitlines()):
        losses = {f"loss_{name}": value for name, value in line["losses"].items()}
        scores = {**losses, **line["scores"], "score": line["score"], "epoch": line["epoch"]}
        found += [
            Reading(line["step"], name.lower(), value) for name, value in scores.items() if value is not None
        ]
    return found


def baselines(ledger: Ledger) -> list[Reading]:
    """What Stable-Baselines3 gave to its logger, which prints Python's floats with three digits. Its step is a row of its own."""
    names = {"train/loss": "loss"}
    return [
        Reading(step, names.get(name, name), number)
        for step, name, value in ledger.logged
        if name != "time/total_timesteps"
        for number in (value, float(f"{value:.3g}"))
    ]


def boosted(ledger: Ledger) -> list[Reading]:
    """What a boosting library prints of its rounds: `[3] name:value …` of xgboost and LightGBM, `3: name: value …` of CatBoost."""
    found = []
    for line in re.finditer(r"^\[?(\d+)(?:\]|:)\t(.+)$", ledger.log, re.MULTILINE):
        for name, text in re.findall(r"([\w' -]+):\s?([\d.]+)(?=\t|$)", line[2]):
            found.append(Reading(int(line[1]), name.replace("'s", "").strip().replace(" ", "_"), float(text)))
    return found


def flair_log(ledger: Ledger) -> list[Reading]:
    """What flair prints of a batch and of an evaluation; the batches of an epoch are the updates of three epochs, by three."""
    found = []
    pattern = r"epoch (\d+) - iter (\d+)/(\d+) - loss (\S+) .* lr: (\S+)"
    for epoch, batch, length, loss, rate in re.findall(pattern, ledger.log):
        assert int(length) * 3 == ledger.updates
        step = (int(epoch) - 1) * int(length) + int(batch)
        values = {"epoch": float(epoch), "loss": float(loss), "lr": float(rate)}
        found += [Reading(step, name, value) for name, value in values.items()]
    return [*found, *printed(r"DEV : loss (?P<eval_loss>\S+)")(ledger)]


def keras_bar(ledger: Ledger) -> list[Reading]:
    """What Keras' callbacks get at the end of each batch and epoch, at the batches so far, ten of them an epoch."""
    epochs = [Reading(step, "epoch", (step - 1) // 10 + 1) for step in range(1, 31)]
    return [*ledger.logged, *epochs]


def detections(ledger: Ledger) -> list[Reading]:
    """What ultralytics prints at the end of an epoch, and of its evaluation. The batches so far are the backward passes."""
    names = ("box_loss", "cls_loss", "dfl_loss")
    found = []
    for epoch, *losses in re.findall(r"(\d+)/2 +\S+G +(\S+) +(\S+) +(\S+) +\d+ +64: 100%", ledger.log):
        step = int(epoch) * len(ledger.losses) // 2
        values = {"epoch": float(epoch), **dict(zip(names, map(float, losses), strict=True))}
        found += [Reading(step, name, value) for name, value in values.items()]
    row = r" all +\d+ +\d+ +(?P<precision>\S+) +(?P<recall>\S+) +(?P<eval_map50>\S+) +(?P<eval_map50_95>\S+)"
    return [*found, *(one._replace(name=one.name.replace("50_95", "50-95")) for one in printed(row)(ledger))]


def either(*rules: Readings) -> Readings:
    """Return the readings of several rules."""
    return lambda ledger: [reading for rule in rules for reading in rule(ledger)]


# the programs


def in_folders(**makers: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return a maker of several things, each in a folder of its own."""

    def make(project: Path) -> None:
        for name, maker in makers.items():
            maker(project / name)

    return make


def accelerate(name: str, end: End, said: str = "") -> Program:
    """Return a script that accelerate ships to test an installation. It trains, and prints no metric."""
    command = ("python", "-m", f"accelerate.test_utils.scripts.{name}")
    return Program(f"accelerate {name}", (), command, materials.none, nothing, end, 0, said=said)


def stanza(
    name: str, files: Callable[[Path], None], readings: Readings, words: str, *, fewest: int
) -> Program:
    """Return one of stanza's trainings."""
    command = ("python", "-m", f"stanza.models.{name}", "--shorthand", "en_x", *words.split())
    return Program(f"stanza {name}", (), command, files, readings, GOOD, fewest)


TREEBANK = "--train_file train.conllu --eval_file dev.conllu --lang en --no_pretrain"
TAGGER = either(
    each_loss,
    means(20, "train_loss"),
    printed(r"STEP (?P<step>\d+)/\d+, .* lr: (?P<lr>\S+)"),
    printed(r"step (?P<step>\d+): .* dev_score = (?P<dev_score>\S+)"),
)
IN_CI = (
    accelerate("test_script", GOOD),
    accelerate("external_deps.test_performance", NO_MODULE, "-m pip install evaluate"),
    accelerate("test_distributed_data_loop", OWN_ERROR, "this script expects that two GPUs are available"),
    stanza(
        "tagger",
        materials.tagged,
        TAGGER,
        f"{TREEBANK} --max_steps 60 --eval_interval 20 --log_step 10 --batch_size 40 --hidden_dim 20 --char_hidden_dim 10",
        fewest=12,
    ),
    stanza(
        "charlm",
        materials.plain_text,
        either(
            means(10),
            printed(r"\| epoch +(?P<epoch>1) \| +(?P<step>\d+)/.* ppl +(?P<ppl>\S+)"),
            printed(r"\| epoch +(?P<epoch>\d+) \|.* loss +(?P<loss>\S+) \| ppl +(?P<ppl>\S+)"),
            printed(r"global step +(?P<step>\d+) .* loss +(?P<eval_loss>\S+) \| ppl +(?P<eval_ppl>\S+)"),
        ),
        "--train_file train.txt --eval_file dev.txt --epochs 2 --char_hidden_dim 32 --char_emb_dim 16 --batch_size 4"
        " --bptt_size 20 --report_steps 10 --cutoff 0",
        fewest=30,
    ),
)
"""Those that CI runs, in the environment of the tests."""

# each of these in an environment of its own


def trl(name: str, files: Callable[[Path], None], *words: str) -> Program:
    """Return one of trl's scripts."""
    command = (
        "python", "-m", f"trl.scripts.{name}", "--dataset_name", "data", "--output_dir", "out", "--max_steps", "8",
        "--logging_steps", "2", "--per_device_train_batch_size", "2", "--report_to", "none", "--use_cpu", "true",
        "--eval_strategy", "steps", "--eval_steps", "4", "--save_strategy", "no", "--bf16", "false",
        "--gradient_checkpointing", "false", "--model_name_or_path", "model", *words,
    )  # fmt: skip
    return Program(f"trl {name}", ("trl==1.16.0",), command, files, either(logged, means(2)), GOOD, 40)


def trl_with_lora(name: str, script: str, files: Callable[[Path], None], *words: str) -> Program:
    """Return one of trl's scripts that trains LoRA's weights."""
    program = trl(
        script, files, *words, "--use_peft", "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj"
    )
    return program._replace(name=name, packages=(*program.packages, "peft==0.21.2"))


def calling(
    name: str, packages: tuple[str, ...], shown: str, files: Callable[[Path], None], readings: Readings
) -> Program:
    """Return a library's training function, called by the few lines of its documentation in `calls/`."""
    script = (Path(__file__).with_name("calls") / f"{name}.py").read_text()

    def make(project: Path) -> None:
        files(project)
        (project / "train.py").write_text(script)

    return Program(
        name.replace("_", "-"), packages, ("python", "train.py"), make, readings, GOOD, 8, shown=(shown,)
    )


def lightning(
    name: str, classes: str, words: str, end: End = GOOD, *, files: Callable[[Path], None] = materials.none
) -> Program:
    """Return a model of Lightning's demos, run by Lightning's own command line."""
    code = f"from lightning.pytorch.cli import LightningCLI; {classes}"
    packages = ("lightning==2.6.6", "jsonargparse[signatures]==4.41.0")
    shown = ("LightningCLI", re.findall(r"CLI\((\w+)", classes)[0], *words.split()[:1])
    return Program(
        name, packages, ("python", "-c", code, *words.split()), files, each_loss, end, 0, shown=shown
    )


def running_mean(ledger: Ledger) -> list[Reading]:
    """The mean of the last two backward passes, as litgpt logs it: at each, beside the optimizer steps so far."""
    losses = [loss for _, loss in ledger.losses]
    after = [before for before, _ in ledger.losses[1:]] + [ledger.updates]
    return [
        Reading(step, "loss", 2 * statistics.fmean(losses[max(0, number - 1) : number + 1]))
        for number, step in enumerate(after)
    ]


def litgpt(name: str) -> Program:
    """Return one of litgpt's fine-tunes: two backward passes an optimizer step, each of half the loss."""
    words = (
        "--data JSON --data.json_path data.json --data.val_split_fraction 0.25 --data.num_workers 0 --train.max_steps 6"
        " --train.global_batch_size 4 --train.micro_batch_size 2 --train.lr_warmup_steps 1 --eval.interval 3"
        " --eval.max_iters 2 --eval.max_new_tokens 4 --precision 32-true"
    )
    readings = either(
        running_mean,
        printed(r"Epoch (?P<epoch>\d+) \| iter \d+ step (?P<step>\d+)"),
        printed(r"val loss:? (?P<val_loss>[\d.]+)"),
        printed(r"val ppl: (?P<val_ppl>\S+)"),
    )
    packages = ("litgpt==0.5.13", "requests==2.34.2")
    before = (("python", "-c", LITGPT_MODEL),)
    command = ("litgpt", name, "model", *words.split())
    return Program(
        f"litgpt {name}", packages, command, materials.instructions, readings, GOOD, 15, before=before
    )


def chemprop(name: str, words: str) -> Program:
    """Return a chemprop training: its bar is printed once, at the end, with its last loss."""
    command = (
        "chemprop",
        "train",
        "-i",
        "data.csv",
        "--task-type",
        "regression",
        "--num-workers",
        "0",
        "-o",
        "out",
        *words.split(),
    )
    readings = either(
        each_loss,
        printed(
            r"Epoch (?P<epoch>\d+)/\d+ .*val_loss: (?P<val_loss>\S+) train_loss_epoch: (?P<train_loss_epoch>\S+)"
        ),
        printed(r"test/mse: (?P<test_mse>\S+)"),
    )
    return Program(name, ("chemprop==2.3.1",), command, materials.molecules, readings, GOOD)


def joey(name: str, configuration: str, end: End, fewest: int, said: str = "") -> Program:
    """Return a JoeyNMT training."""
    readings = either(
        logged,
        printed(
            r"Epoch +(?P<epoch>\d+), Step: +(?P<step>\d+), Batch Loss: +(?P<loss>\S+), Batch Acc: (?P<batch_acc>\S+),.*Lr: (?P<lr>\S+)"
        ),
        printed(
            r"Evaluation result \(\w+\): bleu: +(?P<eval_bleu>[\d.]+), loss: +(?P<eval_loss>[\d.]+), ppl: +(?P<eval_ppl>[\d.]+),"
            r" acc: +(?P<eval_acc>[\d.]+)"
        ),
        printed(r"Epoch +(?P<epoch>\d+), total training loss: (?P<total_training_loss>[\d.]+),"),
    )
    packages = ("joeynmt==2.3.0", "importlib_metadata==10.2.0", "setuptools==79.0.1")
    command = ("python", "-m", "joeynmt", "train", "--skip-test", configuration)
    return Program(name, packages, command, materials.joey, readings, end, fewest, said=said)


def torchtune_log(ledger: Ledger) -> list[Reading]:
    """What torchtune's bar shows of each step, the last of which is the last update. Its backward passes have sums over tokens."""
    found = printed(r"\d+\|(?P<step>\d+)\|Loss: (?P<loss>[\d.]+)")(ledger)
    assert found[-1].step == ledger.updates
    return list(found)


def torchtune(recipe: str, torchao: str) -> Program:
    """Return one of torchtune's recipes; its bar has the loss of each step."""
    packages = ("torchtune==0.6.1", torchao)
    command = ("tune", "run", recipe, "--config", "config.yaml")
    before = (("python", "-c", TORCHTUNE_MODEL),)
    return Program(
        f"torchtune {recipe}", packages, command, materials.torchtune, torchtune_log, GOOD, 6, before=before
    )


def with_end(program: Program, name: str, end: End, said: str, *words: str) -> Program:
    """Return a program with more words, which end it otherwise."""
    return program._replace(name=name, command=(*program.command, *words), end=end, said=said, fewest=0)


LITGPT_MODEL = """
import pathlib, torch
from litgpt import GPT, Config
from litgpt.utils import save_config
config = Config(name="tiny", block_size=64, n_layer=2, n_embd=32, n_head=2, padded_vocab_size=64)
torch.save(GPT(config).state_dict(), "model/lit_model.pth")
save_config(config, pathlib.Path("model"))
"""
SPACY_LOGGER = """
import pathlib
config = pathlib.Path("config.cfg")
text = config.read_text().replace('spacy.ConsoleLogger.v1"', 'spacy.ConsoleLogger.v3"\\noutput_file = "log.jsonl"')
config.write_text(text.replace("progress_bar = false", "progress_bar = null"))
"""
TORCHTUNE_MODEL = """
import pathlib, sentencepiece, torch
from torchtune.models.llama2 import llama2
sentencepiece.SentencePieceTrainer.train(
    input="train.txt", model_prefix="tokenizer", vocab_size=40, hard_vocab_limit=False, pad_id=3)
pathlib.Path("model").mkdir(exist_ok=True)
model = llama2(vocab_size=48, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32, max_seq_len=128, intermediate_dim=64)
torch.save(model.state_dict(), "model/model.pt")
"""
DEMO = "from lightning.pytorch.demos.boring_classes import DemoModel, BoringModel, BoringDataModule; LightningCLI({}, BoringDataModule)"
TEXT = "from lightning.pytorch.demos import LightningTransformer; LightningCLI(LightningTransformer)"
SENTENCES = in_folders(model=materials.tiny_llama, data=materials.sentences)
PREFERENCES = in_folders(model=materials.tiny_llama, data=materials.preferences)
REWARDS = in_folders(model=materials.tiny_judge, data=materials.preferences)
JUDGED = in_folders(model=materials.tiny_llama, judge=materials.tiny_judge, data=materials.preferences)
JUDGE = ("--reward_model_name_or_path", "judge", "--max_completion_length", "8", "--num_generations", "2")
SFT = trl("sft", SENTENCES)
BY_LOG = SFT._replace(words=("--set", "inject=false"))
LABELLED = in_folders(model=materials.tiny_bert, data=materials.labelled)
PAIRS = in_folders(model=materials.tiny_bert, data=materials.pairs)
VISION = ("torch==2.14.1", "torchvision==0.29.1")
TRANSFORMER = lightning("lightning transformer", TEXT, "fit --trainer.max_epochs 1", files=materials.wikitext)
PYKEEN = Program(
    "pykeen transe",
    ("pykeen==1.11.1",),
    ("pykeen", "train", "transe", "--dataset", "nations", "-n", "5"),
    materials.none,
    either(means(7, is_placed=False), printed(r"prev_loss=(?P<prev_loss>[^]]+)\]")),
    GOOD,
    5,
)
PROGRAMS = (
    *IN_CI,
    accelerate("test_sync", GOOD),
    stanza(
        "parser",
        materials.tagged,
        TAGGER,
        f"{TREEBANK} --max_steps 40 --eval_interval 20 --log_step 10 --batch_size 40 --hidden_dim 20 --char_hidden_dim 10"
        " --deep_biaff_hidden_dim 10 --output_file out.conllu",
        fewest=4,
    ),
    with_end(IN_CI[3]._replace(files=materials.none), "stanza tagger, no data", OWN_ERROR, "train.conllu"),
    SFT,
    trl("dpo", PREFERENCES),
    trl("reward", REWARDS),
    trl("kto", PREFERENCES),
    trl("grpo", JUDGED, *JUDGE),
    trl("rloo", JUDGED, *JUDGE),
    BY_LOG._replace(name="trl sft, without the hook"),
    with_end(SFT, "trl sft, NaN", DIVERGED, "the loss was not finite", "--learning_rate", "1e30"),
    with_end(BY_LOG, "trl sft, NaN, without the hook", DIVERGED, "the loss was not finite", "--learning_rate", "1e30"),
    with_end(SFT, "trl sft, no such data", NOT_FOUND, "nowhere", "--dataset_name", "nowhere"),
    with_end(SFT, "trl sft, no such argument", OWN_ERROR, "learnin_rate", "--learnin_rate", "1"),
    trl_with_lora("trl grpo, LoRA", "grpo", JUDGED, *JUDGE),
    trl_with_lora("trl sft, LoRA, adapted", "sft", SENTENCES)._replace(words=("--adapt",)),
    lightning("lightning demo", DEMO.format("DemoModel"), "fit --trainer.max_epochs 2"),
    lightning("lightning demo, evaluation only", DEMO.format("BoringModel"), "validate"),
    with_end(TRANSFORMER, "lightning transformer, no requests", NO_MODULE, "-m pip install requests"),
    TRANSFORMER._replace(packages=(*TRANSFORMER.packages, "requests==2.34.2")),
    litgpt("finetune_full"),
    litgpt("finetune_lora"),
    PYKEEN,
    with_end(PYKEEN, "pykeen transe, no such option", OWN_ERROR, "No such option", "--epochs", "5"),
    chemprop("chemprop", "--epochs 3"),
    chemprop("chemprop, early stopping", "--epochs 40 --patience 1"),
    joey("joeynmt", "config.yaml", GOOD, 10),
    joey("joeynmt, removed argument", "plateau.yaml", OWN_ERROR, 0, "has no 'verbose'"),
    Program(
        "opacus char-lstm",
        ("opacus==1.6.0", "tqdm==4.70.1", "scikit-learn==1.9.1"),
        (
            "python", "-m", "examples.char-lstm-classification", "--device", "cpu", "--data-root", "names",
            "--epochs", "6", "-b", "32", "--print-every", "2",
        ),
        materials.names,
        either(
            means(3, is_placed=False),
            printed(r"Epoch (?P<epoch>\d+)\. Accuracy: (?P<accuracy>\S+)"),
            printed(r"Test Accuracy: (?P<test_accuracy>\S+)"),
        ),
        GOOD,
        19,
    ),
    Program(
        "mace",
        ("mace-torch==0.3.16",),
        (
            "mace_run_train", "--name", "water", "--train_file", "train.xyz", "--valid_fraction", "0.2", "--E0s", "average",
            "--hidden_irreps", "8x0e", "--r_max", "3.0", "--batch_size", "4", "--max_num_epochs", "4", "--device", "cpu",
            "--default_dtype", "float32", "--energy_key", "REF_energy", "--forces_key", "REF_forces",
        ),
        materials.atoms,
        printed(
            r"Epoch (?P<epoch>\d+): .* loss=(?P<eval_loss>\S+), RMSE_E_per_atom= *(?P<eval_rmse_e_per_atom>\S+) meV,"
            r" RMSE_F= *(?P<eval_rmse_f>\S+) meV"
        ),
        GOOD,
        16,
    ),
    Program(
        "rl_zoo3 ppo",
        ("rl_zoo3==2.9.2",),
        ("python", "-m", "rl_zoo3.train", "--algo", "ppo", "--env", "CartPole-v1", "-n", "3000", "--device", "cpu"),
        materials.none,
        baselines,
        GOOD,
        100,
    ),
    Program(
        "spacy tagger",
        ("spacy==3.8.18",),
        (
            "python", "-m", "spacy", "train", "config.cfg", "--paths.train", "train.spacy", "--paths.dev", "dev.spacy",
            "--training.max_steps", "60", "--training.eval_frequency", "20",
        ),
        materials.tagged,
        spacy_log,
        GOOD,
        0,
        before=(
            ("python", "-m", "spacy", "init", "config", "config.cfg", "--pipeline", "tagger"),
            ("python", "-m", "spacy", "convert", "train.conllu", "."),
            ("python", "-m", "spacy", "convert", "dev.conllu", "."),
            ("python", "-c", SPACY_LOGGER),
        ),
    ),
    Program(
        "llamafactory",
        ("llamafactory==0.9.5", *VISION),
        ("llamafactory-cli", "train", "config.yaml"),
        materials.llama_factory,
        logged,
        GOOD,
        20,
    ),
    torchtune("lora_finetune_single_device", "torchao==0.9.0"),
    with_end(
        torchtune("lora_finetune_single_device", "torchao==0.18.0")._replace(before=(), readings=nothing),
        "torchtune, a newer torchao",
        NO_MODULE,
        "'torchao<…'",
    ),
    Program(
        "ultralytics",
        ("ultralytics==8.4.190", *VISION),
        (
            "yolo", "train", "model=yolov8n.yaml", "data=data.yaml", "epochs=2", "imgsz=64", "batch=4", "device=cpu",
            "workers=0", "plots=False", "project=out",
        ),
        materials.pictures,
        detections,
        GOOD,
        6,
    ),
    calling(
        "sentence_transformers",
        ("sentence-transformers==6.2.0", "datasets==5.2.0", "accelerate==1.15.0"),
        "SentenceTransformerTrainer.train",
        PAIRS,
        logged,
    ),
    calling("setfit", ("setfit==1.2.0",), "setfit.Trainer.train", LABELLED, logged),
    calling("flair", ("flair==0.15.1",), "flair ModelTrainer.train", materials.tagged, flair_log),
    calling("xgboost", ("xgboost==3.2.0", "numpy"), "xgboost.train", materials.numbers, boosted),
    calling("lightgbm", ("lightgbm==4.7.0",), "lightgbm.train", materials.numbers, boosted),
    calling("keras", ("keras==3.15.1",), "keras Model.fit", materials.numbers, keras_bar),
    calling("catboost", ("catboost==1.2.10",), "CatBoostClassifier.fit", materials.numbers, boosted),
)  # fmt: skip
