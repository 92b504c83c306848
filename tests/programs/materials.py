"""Small local models and data for programs that would otherwise fetch theirs."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = (
    "the sky is blue",
    "grass is green",
    "snow is white",
    "coal is black",
    "the sea is deep",
    "fire is hot",
)
CHAT = "{% for message in messages %}<s>{{ message['role'] }} {{ message['content'] }}</s>{% endfor %}"


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tiny_llama(folder: Path) -> None:
    """Save a random Llama of two layers with a tokenizer of words and a chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    save_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


def tiny_judge(folder: Path) -> None:
    """Save the same Llama as a model of rewards, with one output."""
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    tiny_llama(folder)
    torch.manual_seed(0)
    LlamaForSequenceClassification(LlamaConfig.from_pretrained(folder, num_labels=1)).save_pretrained(folder)


def save_tokenizer(folder: Path) -> None:
    """Save a tokenizer whose tokens are the words of the sentences."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", "system"]
    names += sorted({word for line in WORDS for word in line.split()} | {"say", "what", "color"})
    tokenizer = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        chat_template=CHAT, model_max_length=64,
    ).save_pretrained(folder)  # fmt: skip


def sentences(folder: Path) -> None:
    """Write texts to train a language model on."""
    write_lines(folder / "train.jsonl", [{"text": f"<s> {WORDS[row % 6]} </s>"} for row in range(32)])
    write_lines(folder / "test.jsonl", [{"text": f"<s> {WORDS[row % 6]} </s>"} for row in range(8)])


def preferences(folder: Path) -> None:
    """Write prompts, each with a better and a worse answer."""
    rows: list[dict[str, object]] = [
        {"prompt": "say what color", "chosen": WORDS[row % 6], "rejected": WORDS[(row + 1) % 6]}
        for row in range(32)
    ]
    write_lines(folder / "train.jsonl", rows)
    write_lines(folder / "test.jsonl", rows[:8])


def wikitext(folder: Path) -> None:
    """Write the text that Lightning's demos train on."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "wikitext-2.txt").write_text("\n".join(WORDS[row % 6] for row in range(240)) + "\n")


def names(folder: Path) -> None:
    """Write a file of names for each of two languages."""
    (folder / "names").mkdir(parents=True)
    (folder / "names" / "one.txt").write_text("".join(f"a{row}lo\n" for row in range(60)))
    (folder / "names" / "two.txt").write_text("".join(f"x{row}ki\n" for row in range(60)))


def plain_text(folder: Path) -> None:
    """Write a text for models of characters."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text("\n".join(WORDS[row % 6] for row in range(600)) + "\n")
    (folder / "dev.txt").write_text("\n".join(WORDS[row % 6] for row in range(60)) + "\n")


def molecules(folder: Path) -> None:
    """Write molecules with a number each."""
    rows = [f"{'C' * (1 + row % 8)}{'O' if row % 2 else 'N'},{row % 8 + row % 2}" for row in range(60)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.csv").write_text("\n".join(["smiles,y", *rows]) + "\n")


def atoms(folder: Path) -> None:
    """Write geometries of water in the extended XYZ format, with an energy and forces."""
    frames = []
    for row in range(24):
        far = 0.9 + 0.01 * row
        energy = (far - 0.96) ** 2 * 30 - 10
        force = -60 * (far - 0.96)
        head = f'Properties=species:S:1:pos:R:3:REF_forces:R:3 REF_energy={energy:.6f} pbc="F F F"'
        lines = [f"O 0 0 0 {-force:.6f} 0 0", f"H {far:.4f} 0 0 {force:.6f} 0 0", "H -0.24 0.93 0 0 0 0"]
        frames.append("\n".join(["3", head, *lines]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.xyz").write_text("\n".join(frames) + "\n")


def translations(folder: Path) -> None:
    """Write sentences and the same backwards, as pairs to translate."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 60), ("dev", 6)):
        lines = [WORDS[row % 6] for row in range(count)]
        (folder / f"{part}.en").write_text("\n".join(lines) + "\n")
        (folder / f"{part}.rev").write_text(
            "\n".join(" ".join(reversed(line.split())) for line in lines) + "\n"
        )


def tagged(folder: Path) -> None:
    """Write sentences with tags as CoNLL-U."""
    blocks = []
    for row in range(30):
        words = WORDS[row % 6].split()
        lines = [
            f"{number}\t{word}\t{word}\tNOUN\tN{number % 3}\t_\t{number - 1}\tdep\t_\t_"
            for number, word in enumerate(words, 1)
        ]
        blocks.append("\n".join(lines))
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "dev"):
        (folder / f"{part}.conllu").write_text("\n\n".join(blocks) + "\n\n")


def none(_: Path) -> None:
    """Make no data: the program has its own."""


JOEY = """\
name: tiny
joeynmt_version: "2.3.0"
model_dir: out
use_cuda: false
random_seed: 1
data:
  train: train
  dev: dev
  dataset_type: plain
  src: {lang: en, max_length: 20, lowercase: false, level: word, voc_min_freq: 1, voc_limit: 100}
  trg: {lang: rev, max_length: 20, lowercase: false, level: word, voc_min_freq: 1, voc_limit: 100}
testing: {n_best: 1, beam_size: 1, batch_size: 8, batch_type: sentence, max_output_length: 10, eval_metrics: [bleu]}
training:
  optimizer: adam
  learning_rate: 0.005
  scheduling: exponential
  batch_size: 6
  batch_type: sentence
  normalization: batch
  epochs: 4
  validation_freq: 20
  logging_freq: 5
  early_stopping_metric: loss
  overwrite: true
model:
  encoder: {type: recurrent, embeddings: {embedding_dim: 16}, hidden_size: 16, bidirectional: true, num_layers: 1}
  decoder:
    type: recurrent
    embeddings: {embedding_dim: 16}
    hidden_size: 16
    num_layers: 1
    attention: bahdanau
    init_hidden: bridge
"""


def joey(folder: Path) -> None:
    """Write configurations of JoeyNMT beside their data: one with a scheduler that the installed torch has changed."""
    translations(folder)
    (folder / "config.yaml").write_text(JOEY)
    (folder / "plateau.yaml").write_text(JOEY.replace("exponential", "plateau"))


def instructions(folder: Path) -> None:
    """Write a tokenizer, and instructions with their outputs."""
    save_tokenizer(folder / "model")
    rows = [{"instruction": "say what color", "input": "", "output": WORDS[row % 6]} for row in range(24)]
    (folder / "data.json").write_text(json.dumps(rows))


def tiny_bert(folder: Path) -> None:
    """Save a random BERT of two layers with the tokenizer of words."""
    import torch
    from transformers import BertConfig, BertModel

    save_tokenizer(folder)
    config = BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)


def pairs(folder: Path) -> None:
    """Write pairs of sentences that mean the same."""
    rows: list[dict[str, object]] = [
        {"anchor": WORDS[row % 6], "positive": WORDS[row % 6].split()[-1]} for row in range(32)
    ]
    write_lines(folder / "train.jsonl", rows)
    write_lines(folder / "test.jsonl", rows[:8])


def labelled(folder: Path) -> None:
    """Write sentences with a label of two."""
    rows: list[dict[str, object]] = [{"text": WORDS[row % 6], "label": row % 2} for row in range(16)]
    write_lines(folder / "train.jsonl", rows)
    write_lines(folder / "test.jsonl", rows[:6])


def numbers(folder: Path) -> None:
    """Write a table of numbers, of which the first column is the class."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(row % 2, (row * 7) % 11 - 5 * (row % 2), (row * 3) % 5) for row in range(200)]
    lines = ["\t".join(map(str, row)) for row in rows]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    (folder / "test.tsv").write_text("\n".join(lines[:40]) + "\n")
    (folder / "columns.cd").write_text("0\tLabel\n")


def pictures(folder: Path) -> None:
    """Write pictures with a bright square, where it is, and a caption."""
    import numpy as np
    from matplotlib import image

    captions = ["filepath\ttitle"]
    for part, count in (("train", 8), ("val", 4)):
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True)
        for row in range(count):
            pixels = np.zeros((64, 64, 3), np.uint8)
            pixels[row * 4 : row * 4 + 24, 20:44, row % 3] = 255
            file = folder / "images" / part / f"{row}.png"
            image.imsave(file, pixels)
            box = f"{row % 2} 0.5 {(row * 4 + 12) / 64:.4f} 0.375 0.375"
            (folder / "labels" / part / f"{row}.txt").write_text(box + "\n")
            captions.append(f"images/{part}/{row}.png\t{WORDS[row % 6]}")
    (folder / "captions.tsv").write_text("\n".join(captions) + "\n")
    (folder / "data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames: [odd, even]\n")


LLAMA_FACTORY = """\
model_name_or_path: model
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
lora_rank: 4
dataset: sayings
dataset_dir: .
template: default
cutoff_len: 64
max_steps: 8
logging_steps: 2
per_device_train_batch_size: 2
output_dir: out
report_to: none
use_cpu: true
val_size: 0.25
eval_strategy: steps
eval_steps: 4
"""


def llama_factory(folder: Path) -> None:
    """Write LLaMA-Factory's configuration, its list of data sets, and a model."""
    tiny_llama(folder / "model")
    instructions(folder)
    (folder / "dataset_info.json").write_text(json.dumps({"sayings": {"file_name": "data.json"}}))
    (folder / "config.yaml").write_text(LLAMA_FACTORY)


TORCHTUNE = """\
output_dir: out
model:
  _component_: torchtune.models.llama2.lora_llama2
  vocab_size: 48
  num_layers: 2
  num_heads: 4
  num_kv_heads: 2
  embed_dim: 32
  max_seq_len: 128
  intermediate_dim: 64
  lora_attn_modules: [q_proj, v_proj]
  apply_lora_to_mlp: false
  lora_rank: 4
  lora_alpha: 8
tokenizer: {_component_: torchtune.models.llama2.llama2_tokenizer, path: tokenizer.model, max_seq_len: 64}
checkpointer:
  _component_: torchtune.training.FullModelTorchTuneCheckpointer
  checkpoint_dir: model
  checkpoint_files: [model.pt]
  output_dir: out
  model_type: LLAMA2
resume_from_checkpoint: false
save_adapter_weights_only: false
dataset: {_component_: torchtune.datasets.alpaca_dataset, source: json, data_files: data.json, packed: false}
seed: 1
shuffle: true
batch_size: 4
optimizer: {_component_: torch.optim.AdamW, lr: 0.001}
lr_scheduler: {_component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup, num_warmup_steps: 2}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
epochs: 2
max_steps_per_epoch: null
gradient_accumulation_steps: 1
clip_grad_norm: null
compile: false
metric_logger: {_component_: torchtune.training.metric_logging.DiskLogger, log_dir: out/logs}
log_every_n_steps: 1
log_peak_memory_stats: false
device: cpu
dtype: fp32
enable_activation_checkpointing: false
enable_activation_offloading: false
profiler: {_component_: torchtune.training.setup_torch_profiler, enabled: false}
"""


def torchtune(folder: Path) -> None:
    """Write torchtune's configuration, instructions, and text for a tokenizer."""
    instructions(folder)
    plain_text(folder)
    (folder / "config.yaml").write_text(TORCHTUNE)
