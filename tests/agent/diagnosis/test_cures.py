"""The cures by name: of errors that the libraries raise here, and of lines written for the others."""

import traceback
import warnings

import pytest

from launcher.agent.diagnosis.cause import crash
from launcher.agent.diagnosis.cures import is_of_input
from launcher.agent.diagnosis.good_exit import diagnose_log

FRAME = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n    main()\n'


def of_checkpointing():
    import torch
    from torch.utils.checkpoint import checkpoint

    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    checkpoint(frozen, torch.ones(1, 2), use_reentrant=True).sum().backward()


def of_target_modules():
    import torch
    from peft import LoraConfig, get_peft_model

    get_peft_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), LoraConfig(target_modules=["q_proj"]))


def of_chat_template():
    bare_tokenizer().apply_chat_template([{"role": "user", "content": "a"}])


def bare_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def of_padding_token():
    bare_tokenizer()(["a", "a b"], padding=True)


def of_padding():
    bare_tokenizer()(["a", "a b"], return_tensors="pt")


def of_negative_ids():
    bare_tokenizer().batch_decode([[0, -100]])


def of_vocabulary():
    import torch

    torch.nn.Embedding(4, 2)(torch.tensor([7]))


def of_shared_tensors():
    import torch
    from safetensors.torch import save_file

    one = torch.ones(2)
    save_file({"a": one, "b": one}, "/dev/null")


def of_optimizer_groups():
    import torch

    def adam(count):
        return torch.optim.AdamW([torch.nn.Parameter(torch.ones(1)) for _ in range(count)])

    adam(1).load_state_dict(adam(2).state_dict())


def of_state_dict():
    import torch

    torch.nn.Linear(2, 2).load_state_dict({"module.weight": torch.ones(2, 2)})


def of_inplace_change():
    import torch

    one = torch.ones(1, requires_grad=True).exp()
    two = one.exp()
    two += 1
    two.backward()


def of_second_backward():
    import torch

    loss = torch.ones(1, requires_grad=True).exp()
    loss.backward()
    loss.backward()


def of_many_losses():
    import torch

    torch.ones(2, requires_grad=True).backward()


def of_numpy():
    import torch

    torch.ones(1, requires_grad=True).numpy()


def of_bfloat16_in_numpy():
    import torch

    torch.ones(1, dtype=torch.bfloat16).numpy()


def of_pickled_objects():
    import argparse
    import tempfile

    import torch

    with tempfile.TemporaryFile() as file:
        torch.save({"arguments": argparse.Namespace()}, file)
        file.seek(0)
        torch.load(file)


def of_batch_sizes():
    import torch

    torch.nn.functional.cross_entropy(torch.ones(4, 3), torch.zeros(5, dtype=torch.long))


def of_empty_dataset():
    import torch

    torch.utils.data.DataLoader([], shuffle=True)


def of_trainer_without_labels():
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    small = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    arguments = TrainingArguments("/tmp/none", report_to=[], use_cpu=True, save_strategy="no", max_steps=1)
    Trainer(LlamaForCausalLM(small), arguments, train_dataset=[{"input_ids": [1, 2]}] * 8).train()


def of_best_model():
    from transformers import TrainingArguments

    TrainingArguments("/tmp/none", load_best_model_at_end=True, eval_strategy="steps", save_strategy="epoch")


def of_missing_column():
    from datasets import Dataset

    Dataset.from_list([{"question": "a"}]).map(lambda row: {"text": row["input"]})


def of_a_loaders_worker():
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.zeros(3 + index)

    list(torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1))


NO_SERVER = "http://127.0.0.1:1"


def of_upload():
    from huggingface_hub import HfApi

    HfApi(endpoint=NO_SERVER).create_repo("me/model")


def of_hub_without_network():
    import tempfile

    from huggingface_hub import hf_hub_download

    with tempfile.TemporaryDirectory() as cache:
        hf_hub_download("me/model", "config.json", endpoint=NO_SERVER, cache_dir=cache)


PROVOKED = [
    (of_missing_column, "user-code-error", "rename a column"),
    (of_checkpointing, "user-code-error", "enable_input_require_grads"),
    (of_target_modules, "user-code-error", "all-linear"),
    (of_chat_template, "user-code-error", "tokenizer.chat_template"),
    (of_padding_token, "user-code-error", "tokenizer.pad_token = tokenizer.eos_token"),
    (of_padding, "user-code-error", "DataCollatorForSeq2Seq"),
    (of_negative_ids, "user-code-error", "replace -100"),
    (of_vocabulary, "user-code-error", "resize_token_embeddings"),
    (of_shared_tensors, "user-code-error", "save_model"),
    (of_optimizer_groups, "user-code-error", "the same trainable parameters"),
    (of_state_dict, "user-code-error", "remove a prefix"),
    (of_inplace_change, "user-code-error", "set_detect_anomaly"),
    (of_second_backward, "user-code-error", "detach"),
    (of_many_losses, "user-code-error", "loss.mean()"),
    (of_numpy, "user-code-error", ".detach().cpu().numpy()"),
    (of_bfloat16_in_numpy, "user-code-error", ".float()"),
    (of_pickled_objects, "user-code-error", "weights_only=False"),
    (of_batch_sizes, "user-code-error", "labels"),
    (of_empty_dataset, "user-code-error", "len(dataset)"),
    (of_trainer_without_labels, "user-code-error", "label_names"),
    (of_best_model, "user-code-error", "save_strategy equal to eval_strategy"),
    (of_a_loaders_worker, "user-code-error", "pad_sequence"),
    (of_upload, "upload-failed", "-- COMMAND"),
    (of_hub_without_network, "hub-access", "HF_HUB_OFFLINE=1"),
]


@pytest.mark.long
@pytest.mark.slow(reason="imports torch, transformers and peft")
def test_an_error_of_a_library_names_its_cure():
    wrong = []
    for provoke, name, cure in PROVOKED:
        try:
            with warnings.catch_warnings(action="ignore"):
                provoke()
        except Exception:  # noqa: BLE001 - whatever the library raises is the log
            log = traceback.format_exc()
        else:
            log = ""
        found = diagnose_log(log.encode())
        if found.name != name or cure not in found.mend:
            wrong.append((provoke.__name__, found.name, found.mend, log[-500:]))
    assert not wrong


WRITTEN = [
    ("httpx.ConnectError: [Errno -3] Temporary failure in name resolution", "download-failed", "the folder that is sent"),
    ("requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='files.example.org', port=443): Read timed out. (read timeout=10)", "download-failed", "download it on this computer"),
    ("aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host data.example.org:443 ssl:default [Connect call failed]", "download-failed", "HTTPS_PROXY"),
    ("OSError: [Errno 24] Too many open files: '/data/part-00871.parquet'", "too-many-open-files", "ulimit -n"),
    ("/tmp/tmpq1/main.c:2:10: fatal error: Python.h: No such file or directory", "missing-dependency", "python3-dev"),
    ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "missing-dependency", "LIBRARY_PATH"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'", "missing-dependency", "-devel"),
    ("RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.", "no-gpu-in-container", "nvidia-smi"),
    ("exec /opt/conda/bin/python: exec format error", "user-code-error", "--platform linux/amd64"),
    ("subprocess.CalledProcessError: Command '['git', 'describe']' returned non-zero exit status 128.", "user-code-error", "LAUNCH_COMMIT"),
    ("ValueError: The checkpoint you are trying to load has model type `newest` but Transformers does not recognize this architecture.", "missing-dependency", "transformers>="),
    ("TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'", "user-code-error", "newer Python"),
    ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "too-many-processes", "ulimit -u"),
    ("RuntimeError: CAS service error : ReqwestMiddleware Error: Request failed after 5 retries", "hub-access", "HF_HUB_DISABLE_XET"),
    ("deepspeed.ops.op_builder.builder.CUDAMismatchException: Installed CUDA version 12.1 does not match 11.8", "missing-dependency", "DS_SKIP_CUDA_CHECK"),
    ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "nan-divergence", "safer precision"),
    ("torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')", "missing-dependency", "build-essential"),
    ("pyarrow.lib.ArrowInvalid: JSON parse error: Column(/messages/[]/content) changed from string to array in row 3", "user-code-error", "one type"),
    ("RuntimeError: Cannot find valid samples, check `data/README.md` for the data format.", "user-code-error", "one row"),
    ("ValueError: generation_batch_size (8) must be divisible by num_generations (28).", "user-code-error", "a divisor"),
    ("FileNotFoundError: Couldn't find a module script at /work/accuracy/accuracy.py. Module 'accuracy' doesn't exist on the Hugging Face Hub either.", "hub-access", "scikit-learn"),
    ("RuntimeError: operator torchvision::nms does not exist", "missing-dependency", "--with torchvision"),
    ("ValueError: All labels in your dataset are -100. Training losses will be all 0.", "not-learning", "larger max_length"),
    ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "illegal-memory-access", "CUDA_LAUNCH_BLOCKING"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "name", "cure"), WRITTEN)
def test_a_line_of_a_log_names_its_cure(line, name, cure):
    found = diagnose_log(f"{FRAME}{line}\n".encode())
    assert (found.name, cure in found.mend) == (name, True), found


def test_memory_that_ends_in_an_evaluation_has_another_cure_than_in_a_step():
    """A smaller training batch frees nothing there."""
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    inside = (
        '  File "/lib/transformers/trainer.py", line 4, in evaluation_loop\n    logits = gather(logits)\n'
    )
    assert "eval_accumulation_steps" in diagnose_log(f"{FRAME}{inside}{error}\n".encode()).mend
    assert "micro-batch" in diagnose_log(f"{FRAME}{error}\n".encode()).mend


def test_losses_that_are_all_zero_are_no_training():
    """One that is not, or a step without reward, says otherwise."""
    zeros = "".join(
        f"{{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': {n / 10}}}\n" for n in range(8)
    )
    found = diagnose_log(zeros.encode())
    assert (found.name, "masked" in found.why, found.number) == ("not-learning", True, 8)
    learns = zeros + "{'loss': 0.4, 'grad_norm': 0.2, 'learning_rate': 1e-05, 'epoch': 0.9}\n"
    assert diagnose_log(learns.encode()).name == "none"


@pytest.mark.parametrize(
    ("frame", "error", "name", "cure"),
    [
        ("site-packages/trl/extras/vllm_client.py", "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('closed'))", "user-code-error", "trl vllm-serve"),
        ("site-packages/trl/trainer/sft_trainer.py", "TypeError: Accelerator.prepare() got an unexpected keyword argument 'all'", "missing-dependency", "versions that fit"),
        ("dist-packages/triton/compiler/code_generator.py", "AttributeError: module 'triton.language' has no attribute 'new'", "missing-dependency", "triton"),
        ("project/train.py", "TypeError: Net.forward() got an unexpected keyword argument 'x'", "user-code-error", "fix the script"),
        ("project/train.py", "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('closed'))", "download-failed", "HTTPS_PROXY"),
    ],
)  # fmt: skip
def test_the_traceback_says_whether_a_library_or_another_program_is_at_fault(frame, error, name, cure):
    log = f'{FRAME}  File "/lib/python3.11/{frame}", line 3, in call\n    go()\n{error}\n'
    found = diagnose_log(log.encode())
    assert (found.name, cure in found.mend) == (name, True), found


def test_a_learning_rate_of_zero_and_a_dataset_without_labels_train_nothing():
    rates = "".join(
        f"{{'loss': 2.1, 'grad_norm': 0.7, 'learning_rate': 0.0, 'epoch': {n}}}\n" for n in range(8)
    )
    found = diagnose_log(rates.encode())
    assert (found.name, "learning rate" in found.why, "masked" in found.why) == ("not-learning", True, False)
    scan = "train: Scanning /data/labels... 0 images, 40 backgrounds, 0 corrupt: 100%|####| 40/40\n"
    assert diagnose_log(f"{scan}3 epochs completed in 0.1 hours.\n".encode()).name == "not-learning"
    assert diagnose_log(f"{scan.replace('train:', 'val:')}3 epochs completed.\n".encode()).name == "none"


def test_an_upload_that_is_refused_is_no_download():
    """The token may read, and not write; nothing needs to be fetched."""
    inside = '  File "/lib/huggingface_hub/hf_api.py", line 4, in create_repo\n    hf_raise_for_status(r)\n'
    error = "huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/api/repos/create"
    found = diagnose_log(f"{FRAME}{inside}{error}\n".encode())
    assert (found.name, "upload" in found.why, "write permission" in found.mend) == ("hub-access", True, True)
    gated = "huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo for url https://huggingface.co/a/b"
    assert "upload" not in diagnose_log(f"{FRAME}{gated}\n".encode()).why


@pytest.mark.parametrize("function", ["push_to_hub", "upload_file", "_upload_folder", "log_artifact"])
@pytest.mark.parametrize(
    "error",
    [
        "httpx2.ConnectError: [Errno -2] Name or service not known",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/repos/create",
        "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/repos/create: offline mode is enabled.",
    ],
)
def test_an_upload_without_network_is_no_download(function, error):
    inside = '  File "/lib/hf_api.py", line 4, in %s\n    post()\n'
    found = diagnose_log(f"{FRAME}{inside % function}{error}\n".encode())
    assert (found.name, "uploaded" in found.why) == ("upload-failed", True), found
    assert diagnose_log(f"{FRAME}{inside % 'load'}{error}\n".encode()).name != "upload-failed"


def test_a_hub_that_is_not_reached_is_the_hubs_failure():
    """The first error of the chain says only that some name was not resolved."""
    again = "\nThe above exception was the direct cause of the following exception:\n\n"
    log = f"{FRAME}httpcore2.ConnectError: [Errno -2] Name or service not known\n{again}{FRAME}OSError: We couldn't connect to 'https://huggingface.co' to load the files\n"
    found = diagnose_log(log.encode())
    assert (found.name, "HF_HUB_OFFLINE=1" in found.mend) == ("hub-access", True), found


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
        "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
        "RuntimeError: Input type (float) and bias type (c10::BFloat16) should be the same",
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
    ],
)
def test_a_float32_input_of_half_precision_weights_is_named(line):
    """To the agent too, and not where the weights are float32."""
    log = f"{FRAME}{line}\n".encode()
    for found in (diagnose_log(log), crash(log, 1, None, None)):
        assert found.name == "bf16-dtype-mismatch"
        assert ("input of a layer" in found.why, "x.to(" in found.mend) == (True, True)
    assert not is_of_input("mat1 and mat2 must have the same dtype, but got BFloat16 and Float")


def test_the_best_metric_that_no_evaluation_has_is_named():
    """The last exception of the chain says it, not the one inside."""
    log = (
        f"{FRAME}KeyError: 'eval_f1'\n\nThe above exception was the direct cause of the following exception:\n\n"
        f"{FRAME}KeyError: \"The `metric_for_best_model` training argument is set to 'eval_f1', which is not found in the evaluation metrics.\"\n"
    )
    assert "compute_metrics" in diagnose_log(log.encode()).mend


def test_memory_that_is_refused_in_an_evaluation_is_not_the_training_s():
    inside = '  File "/lib/transformers/trainer.py", line 4, in evaluation_loop\n    logits = nested_concat(logits)\n'
    error = "RuntimeError: [enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
    assert "preprocess_logits_for_metrics" in diagnose_log(f"{FRAME}{inside}{error}\n".encode()).mend


@pytest.mark.parametrize("losses", ["{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.1}\n" * 3, ""])
def test_an_interrupt_after_another_failure_is_not_its_cause(losses):
    found = diagnose_log(f"{losses}KeyboardInterrupt\n".encode())
    assert ("Ctrl-C" in (found.why or "")) == (not losses)
