"""What a log proves to the agent, and what any log tells a person: what initiated the failure, not what followed."""

import io
import random
import re
import time
import traceback
from pathlib import Path

import pytest

from launcher.agent.diagnosis.diagnose import PROVABLE, ProcessEnd, diagnose, prove
from launcher.agent.diagnosis.failures import BY_NAME, FAILURES, patterns
from launcher.agent.diagnosis.good_exit import diagnose_log
from launcher.agent.diagnosis.remedy import TABLE

FRAME = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n    go()\n'


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fp16-unscale", "ValueError: Attempting to unscale FP16 gradients."),
        ("bf16-unsupported", "ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu"),
        (
            "bf16-unsupported",
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
        ),
        (
            "bf16-unsupported",
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, CUDA_R_16BF)`",
        ),
        ("bf16-dtype-mismatch", "RuntimeError: expected dtype float for `end` but got dtype c10::BFloat16"),
        ("bf16-dtype-mismatch", "RuntimeError: expected dtype c10::BFloat16 for `end` but got dtype float"),
        ("bf16-dtype-mismatch", "RuntimeError: expected scalar type BFloat16 but found Float"),
        (
            "bf16-dtype-mismatch",
            "RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float",
        ),
        (
            "bf16-dtype-mismatch",
            "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
        ),
        (
            "bf16-dtype-mismatch",
            "NotImplementedError: \"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
        ),
        (
            None,
            "RuntimeError: \"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'ComplexFloat'",
        ),
        (None, "RuntimeError: mat1 and mat2 must have the same dtype, but got Long and BFloat16"),
        (None, "RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float"),
        (None, "KeyError: 'loss'"),
    ],
)
def test_the_line_that_ends_a_traceback_tells_the_class(name, line):
    """With that line as the proof; what is no precision's failure is none here."""
    found = prove(f"step 1\n{FRAME}{line}\n".encode())
    assert (found.name, found.line) == (name, line) if name else found is None


UNSCALE = "ValueError: Attempting to unscale FP16 gradients.\n"
KEY = "KeyError: 'loss'\n"


@pytest.mark.parametrize(
    ("log", "is_unscale"),
    [
        (UNSCALE, False),
        (f"it printed\n{UNSCALE}{FRAME}{KEY}", False),
        (FRAME + UNSCALE + FRAME + KEY, False),
        (FRAME + KEY + FRAME + UNSCALE, True),
        (f"{FRAME}{UNSCALE}\nDuring handling of the above exception, another exception occurred:\n\n{FRAME}{KEY}", True),
        (f"{FRAME}{KEY}\nDuring handling of the above exception, another exception occurred:\n\n{FRAME}{UNSCALE}", True),
        (f"{FRAME}{UNSCALE}{FRAME}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\n", True),
        (f"{FRAME}{UNSCALE}{FRAME}subprocess.CalledProcessError: Command '['python']' returned 1.\n", True),
        (f"{FRAME}{UNSCALE}{FRAME}torch.distributed.DistBackendError: NCCL error\n", True),
        (f"{FRAME}{UNSCALE}" + "{'loss': '1.0', 'grad_norm': '1.0'}\n", False),
        (f"{FRAME}{UNSCALE}  0%|      | 0/30 [00:00<?, ?it/s]\n", True),
        ("\n".join(f"[rank1]: {line}" for line in (FRAME + UNSCALE).splitlines()), True),
        (f"\x1b[31m{FRAME}\x1b[0m\x1b[1m{UNSCALE}", True),
        ("    raise it\n" + FRAME.partition("\n")[2] + UNSCALE, True),
        ("", False),
        (FRAME, False),
    ],
    ids=[
        "printed",
        "printed, then another",
        "caught, then another",
        "another caught, then this",
        "first of a chain",
        "last of a chain",
        "torchrun",
        "accelerate",
        "another rank",
        "trained on",
        "a bar behind it",
        "a rank's prefix",
        "colours",
        "a tail without the head",
        "nothing",
        "no end",
    ],
)  # fmt: skip
def test_what_counts_is_the_exception_that_nobody_caught(log, is_unscale):
    """Wrappers and other ranks aside, and the first that is known of its chain."""
    found = prove(log.encode())
    assert (found is not None and found.name == "fp16-unscale") == is_unscale


def test_a_host_without_a_card_is_no_card_without_bf16():
    """transformers says the same of both; the lines above tell them apart."""
    line = "ValueError: Your setup doesn't support bf16/gpu.\n"
    driver = "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.\n"
    assert prove((driver + FRAME + line).encode()) is None


def test_bytes_that_are_no_text_are_no_obstacle():
    """A log holds whatever a script writes."""
    assert prove(b"\xff\xfe\0" + (FRAME + UNSCALE).encode()).name == "fp16-unscale"


def test_every_class_that_a_log_can_prove_has_an_answer():
    """A rule without a row in the table of remedies would be a crash of the agent."""
    assert set(PROVABLE) <= set(TABLE)


# any log

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23 GiB\n"
BY_TORCHRUN = f"""{FRAME}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Failures:
[1]:
  exitcode  : -15 (pid: 8)
  traceback : Signal 15 (SIGTERM) received by PID 8
Root Cause (first observed failure):
[0]:
  exitcode  : %s (pid: 7)
"""
CASCADE = (
    "W0407 10:13:23.9 26 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 26 closing signal SIGTERM\n"
    "[rank3]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(\n"
    "[rank2]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:1, remote process exited\n"
    "BrokenPipeError: [Errno 32] Broken pipe\n"
) + BY_TORCHRUN % 1
WARNINGS = (
    "a.py:1: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\n"
    "UserWarning: Tesla P100 with CUDA capability sm_60 is not compatible with the current PyTorch installation.\n"
    "UserWarning: The operator 'aten::nonzero' is not currently supported on the MPS backend and will fall back to run on the CPU.\n"
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99).\n"
    "dso_loader.cc:64] Could not load dynamic library 'libcudart.so.11'; dlerror: libcudart.so.11: cannot open shared object file\n"
)
BANNER = "@  WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!  @\n"
ENDINGS = [
    ("not-rehearsable", f"{FRAME}OSError: libcuda.so.1: cannot open\nnot rehearsable: OSError: libcuda.so.1: cannot open\n"),
    ("fp16-unscale", FRAME + UNSCALE),
    ("bf16-unsupported", f"{FRAME}ValueError: Your setup doesn't support bf16/gpu.\n"),
    ("bf16-dtype-mismatch", f"{FRAME}RuntimeError: self and mat2 must have the same dtype, but got Half and Float\n"),
    ("nan-divergence", "{'loss': 0.0, 'grad_norm': nan}\n{'loss': 0.0, 'grad_norm': nan}\n"),
    ("not-learning", f"{FRAME}launcher_worker.Tripped: not-learning: no weight moved in 5 steps\n"),
    ("cuda-oom", FRAME + OOM),
    ("shm-too-small", f"{FRAME}RuntimeError: unable to write to file </torch_7_8>: No space left on device (28)\n"),
    ("host-oom-killed", "run.sh: line 3:  4242 Killed                  python train.py\n"),
    ("host-oom-killed", BY_TORCHRUN % -9),
    ("port-in-use", f"{FRAME}RuntimeError: Address already in use\n"),
    ("gpu-busy-exclusive", f"{FRAME}RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n"),
    ("no-kernel-image", f"{FRAME}RuntimeError: CUDA error: no kernel image is available for execution on the device\n"),
    ("driver-too-old", f"{FRAME}RuntimeError: CUDA driver version is insufficient for CUDA runtime version\n"),
    ("no-gpu-in-container", f"{FRAME}RuntimeError: No CUDA GPUs are available\n"),
    ("gpu-lost", "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"),
    ("device-side-assert", "Loss.cu:250: nll: block: [0,0,0], thread: [5,0,0] Assertion `t < n_classes` failed.\n"),
    ("wrong-device-ordinal", f"{FRAME}torch.AcceleratorError: CUDA error: invalid device ordinal\n"),
    ("checkpoint-corrupt", f"{FRAME}EOFError: Ran out of input\n"),
    ("disk-full", f"{FRAME}OSError: [Errno 122] Disk quota exceeded\n"),
    ("shared-file-refused", f"{FRAME}PermissionError: [Errno 13] Permission denied: '/home/me/.launch/store/data/{'ab' * 32}/tree/content'\n"),
    ("docker-permission", "dial unix /var/run/docker.sock: connect: permission denied\n"),
    ("docker-build-failure", '#9 1.2 E: Unable to locate package foo\nERROR: failed to solve: process "/bin/sh -c apt-get"\n'),
    ("ssh-hostkey-mismatch", BANNER),
    ("ssh-auth-failed", "me@lab: Permission denied (publickey,password).\n"),
    ("hub-access", f"{FRAME}OSError: You are trying to access a gated repo.\n"),
    (
        "upload-failed",
        f'{FRAME}  File "hf_api.py", line 4, in create_commit\nhttpx.ConnectError: [Errno -2] Name or service not known\n',
    ),
    ("device-map-conflict", f"{FRAME}ValueError: You can't train a model in 8-bit or 4-bit precision with CPU or disk offload.\n"),
    ("mps-unsupported-op", f"{FRAME}TypeError: BFloat16 is not supported on MPS\n"),
    ("missing-dependency", f"{FRAME}ModuleNotFoundError: No module named 'flash_attn'\n"),
    ("nccl-error", "[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(\n"),
    ("preempted", "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***\n"),
    ("host-lost", f"{FRAME}RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:7\nsrun: error: Node failure on n2\n"),
    ("host-lost", "slurmstepd: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-11-26T13:55:21 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"),
    ("preempted", f"{FRAME}torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 1\n"),
    ("ssh-connection-lost", "client_loop: send disconnect: Broken pipe\n"),
    ("needs-terminal", f"{FRAME}EOFError: EOF when reading a line\n"),
    ("download-failed", f"{FRAME}urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>\n"),
    ("user-code-error", FRAME + KEY),
    ("user-code-error", "train.py: error: unrecognized arguments: --lrr\n"),
    ("unknown", BY_TORCHRUN % 1),
    ("illegal-memory-access", f"{FRAME}RuntimeError: CUDA error: an illegal memory access was encountered\n"),
    ("too-many-processes", f"{FRAME}RuntimeError: can't start new thread\n"),
    ("too-many-open-files", f"{FRAME}OSError: [Errno 24] Too many open files: 'a'\n"),
    ("none", "Failed to load CPU gemm_4bit_forward from kernels-community: No module named 'kernels'. Please make sure you …\n"),
    ("none", "Failed to load /venv/torchao/_C_mxfp8.so: Could not load this library: /venv/torchao/_C_mxfp8.so\n"),
    ("none", "epoch 1 done\n[rank0]:[W1 P.cpp:1] Warning: process group has NOT been destroyed\n"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "log"), ENDINGS)
def test_a_log_tells_its_class(name, log):
    """Each class of the table, behind steps that were trained."""
    assert diagnose(f"{{'loss': 1.5, 'grad_norm': 1.0}}\n{log}".encode()).name == name


@pytest.mark.parametrize(("name", "log"), [one for one in ENDINGS if one[1]])
def test_a_log_whose_end_is_not_known_tells_its_class(name, log):
    """As `launch diagnose FILE` reads it."""
    assert diagnose_log(f"{{'loss': 1.5, 'grad_norm': 1.0}}\n{log}".encode()).name == name


SAID = [
    ("bf16-unsupported", "AssertionError: bfloat16 precision is not supported by your GPU"),
    ("bf16-dtype-mismatch", "RuntimeError: expected dtype float for `weight` but got dtype c10::BFloat16"),
    ("bf16-dtype-mismatch", "RuntimeError: mixed dtype (CPU): expect parameter to have scalar type of Float"),
    ("bf16-dtype-mismatch", "ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32"),
    ("bf16-dtype-mismatch", "RuntimeError: Found dtype Half but expected Float"),
    ("user-code-error", "RuntimeError: Found dtype Long but expected Float"),
    ("nan-divergence", "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1"),
    ("nan-divergence", "FloatingPointError: Loss became infinite or NaN at iteration=140!"),
    ("nan-divergence", "ValueError: The loss returned in `training_step` is nan."),
    ("nan-divergence", "ValueError: NaN values found in total_loss"),
    ("nan-divergence", "RuntimeError: Detected nan or inf values in loss"),
    ("cuda-oom", "RuntimeError: CUDA failed with error out of memory"),
    ("cuda-oom", "CUDA error: out of memory For debugging consider passing CUDA_LAUNCH_BLOCKING=1."),
    ("cuda-oom", "[E615 21:00:00.0 compiler.ts:4] NPU out of memory. NPUWorkspaceAllocator tried to allocate 2 GiB"),
    ("cuda-oom", "in use. Of the rest 43 GiB is allocated by PyTorch, and 396 MiB is reserved by PyTorch but unallocated."),
    ("cuda-oom", "W0101 10:00:00.000000 7 include/alloc.h:320 NCCL WARN Cuda failure 2 'out of memory'"),
    ("cuda-oom", "ResourceExhaustedError: OOM when allocating tensor with shape[8] on /job:localhost/device:GPU:0"),
    ("shm-too-small", "RuntimeError: unable to mmap 512 bytes from file </torch_1_2_0>: Cannot allocate memory (12)"),
    ("host-oom-killed", "srun: error: n1: task 0: Out Of Memory"),
    ("host-oom-killed", "slurmstepd: error: Exceeded job memory limit"),
    ("host-oom-killed", "=>> PBS: job killed: mem 9000000kb exceeded limit 8000000kb"),
    ("host-oom-killed", "Your session crashed after using all available RAM."),
    ("host-oom-killed", "1234.batch          batch        2 OUT_OF_ME+    0:125"),
    ("host-oom-killed", "The node was low on resource: memory. Container trainer was using 9Gi"),
    ("port-in-use", "OSError: [WinError 10048] Only one usage of each socket address is normally permitted"),
    ("no-kernel-image", "RuntimeError: Found Tesla P100 which is too old to be supported by the triton GPU compiler"),
    ("no-gpu-in-container", "nvidia-container-cli: device error: 1: unknown device: unknown"),
    ("no-gpu-in-container", 'docker: exec: "nvidia-container-runtime": executable file not found in $PATH'),
    ("no-gpu-in-container", "RuntimeError: Failed to infer device type"),
    ("no-gpu-in-container", "MisconfigurationException: No supported gpu backend found!"),
    ("no-gpu-in-container", "ValueError: fp16 mixed precision requires a GPU (not 'cpu')."),
    ("wrong-device-ordinal", "RuntimeError: Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1."),
    ("gpu-lost", "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"),
    ("checkpoint-corrupt", "OSError: Unable to open file (truncated file: eof = 96, sblock->base_addr = 0)"),
    ("checkpoint-corrupt", "RuntimeError: [enforce fail at inline_container.cc:222] . file not found: archive/data/94308"),
    ("checkpoint-corrupt", "RuntimeError: Invalid magic number; corrupt file?"),
    ("disk-full", "OSError: Not enough disk space. Needed: 41.32 GiB"),
    ("disk-full", "The node was low on resource: ephemeral-storage."),
    ("docker-build-failure", "executor failed running [/bin/sh -c pip install torch]: exit code: 1"),
    ("docker-build-failure", "ERROR: Package 'x' requires a different Python: 3.8.10 not in '>=3.9'"),
    ("docker-build-failure", "COPY failed: file not found in build context: stat requirements.txt"),
    ("ssh-auth-failed", "PasswordRequiredException: private key file is encrypted"),
    ("hub-access", "OSError: Can't load tokenizer for 'x'. If you were trying to load it from 'https://huggingface.co/models'"),
    ("hub-access", "FileNotFoundError: me/my-model (repository not found)"),
    ("hub-access", "OSError: Incorrect path_or_model_id: 'out'. Please provide either the path to a local folder"),
    ("hub-access", "FileNotFoundError: Couldn't find any data file at /x. Couldn't find 'a/b' on the Hugging Face Hub"),
    ("hub-access", "ConnectTimeoutError: (<x>, 'Connection to huggingface.co timed out. (connect timeout=10)')"),
    ("device-map-conflict", "ValueError: You can't train a model that has been loaded in 8-bit precision on a different device"),
    ("device-map-conflict", "ValueError: The current `device_map` had weights offloaded to the disk. Please provide an `offload_folder`"),
    ("mps-unsupported-op", "RuntimeError: The MPS backend is supported on MacOS 13.0+."),
    ("mps-unsupported-op", "RuntimeError: MPS does not support cumsum op with int64 input"),
    ("mps-unsupported-op", "/MetalPerformanceShaders/MPSNDArray/Kernels/A.mm:32: failed assertion `destination datatype must be fp32'"),
    ("missing-dependency", "RuntimeError: Distributed package doesn't have NCCL built in"),
    ("missing-dependency", "RuntimeError: operator torchvision::nms does not exist"),
    ("missing-dependency", "compile = true needs a compiler (gcc or clang) on the host: install it, or launch with --set compile=false"),
    ("nccl-error", "RuntimeError: Timed out initializing process group in store based barrier on rank: 3"),
    ("preempted", "[INFO] SIGTERM received, saving a checkpoint"),
    ("preempted", "TERM_OWNER: job killed by owner."),
    ("preempted", "TERM_RUNLIMIT: job killed after reaching LSF run time limit."),
    ("ssh-connection-lost", "ssh_dispatch_run_fatal: Connection to 10.0.0.1 port 22: Broken pipe"),
    ("ssh-connection-lost", "mux_client_request_session: read from master failed: Broken pipe"),
    ("ssh-connection-lost", "rsync: [sender] write error: Broken pipe (32)"),
    ("user-code-error", "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0."),
    ("user-code-error", "NotImplementedError: Using RTX 4000 series doesn't support P2P. Please set `NCCL_P2P_DISABLE`"),
    ("user-code-error", "WeightsUnpickler error: Unsupported global: GLOBAL mine.Model was not an allowed global by default"),
    ("user-code-error", "12:00:07 ValueError: no such layer"),
    ("user-code-error", "train.py: error: argument --lr: invalid float value: 'abc'"),
    ("user-code-error", "Error: No such option: --lrr"),
    ("user-code-error", "✘ Config error for 'spacy.ConsoleLogger.v3'"),
    ("unknown", "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."),
    ("unknown", "run.sh: line 45: --lr: command not found"),
    ("unknown", "ActorDiedError: The actor died unexpectedly before finishing this task."),
    ("unknown", "RuntimeError: Engine core initialization failed. See root cause above."),
    ("unknown", "RuntimeError: cuda runtime error (4) : unspecified launch failure at THC.cu:85"),
    ("unknown", "[rank: 1] Child process with PID 7 terminated with code 1. Forcefully terminating all other processes"),
    ("unknown", "python[7]: segfault at 60 ip 00007f24b8cf2616 sp 00007ffc0f212680 error 4 in libc10_cuda.so"),
    ("no-gpu-in-container", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
    ("user-code-error", "OSError: [Errno 30] Read-only file system: 'a.lock'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "line"), SAID)
def test_what_the_libraries_and_tools_say_tells_the_class(name, line):
    """Beside the words of ENDINGS: other versions, other frameworks, other schedulers."""
    told = diagnose(f"step 1\n{line}\n".encode())
    assert (told.name, told.number) == (name, 2)


@pytest.mark.parametrize(
    "line",
    [
        "E7 iter[14/15] | [Loss] nan | [best] 0",
        "Train Loss nan",
        "Epoch 3: 41%|#  | 4/10 [00:10<00:07, 3it/s, v_num=7, train_loss_step=nan.0]",
    ],
)
def test_a_loss_is_read_as_each_framework_prints_it(line):
    """After one that was finite it is a divergence, and before one that is finite none."""
    good = line.replace("nan.0", "nan").replace("nan", "0.7")
    assert diagnose(f"{good}\n{line}\n".encode()).name == "nan-divergence"
    assert diagnose(f"{line}\n{good}\n".encode()).name == "none"


def _caught(action):
    """Return the log of an action that fails."""
    with pytest.raises(Exception, match=r"^") as caught:
        action()
    return "".join(traceback.format_exception(caught.value)).encode()


def test_a_torn_file_is_told_as_torch_and_safetensors_tell_it():
    """A pointer in place of a file, an empty one, and one that was cut short."""
    torch = pytest.importorskip("torch", reason="the training libraries are not installed")
    safetensors = pytest.importorskip("safetensors.torch", reason="the training libraries are not installed")
    whole, pointer = safetensors.save({"w": torch.zeros(3)}), b"version https://git-lfs.github.com/spec/v1\n"
    for content in (pointer, b""):
        log = _caught(lambda content=content: torch.load(io.BytesIO(content)))
        assert diagnose(log).name == "checkpoint-corrupt"
    for content in (whole[:-3], whole[:20], pointer, b"", b"\0" * 80):
        log = _caught(lambda content=content: safetensors.load(content))
        assert diagnose(log).name == "checkpoint-corrupt"


def test_a_file_that_torch_only_refuses_to_trust_is_not_torn():
    """The script must say that it trusts it; to fetch it again would not help."""
    torch = pytest.importorskip("torch", reason="the training libraries are not installed")
    saved = io.BytesIO()
    torch.save({"path": Path()}, saved)
    log = _caught(lambda: torch.load(io.BytesIO(saved.getvalue())))
    assert diagnose(log).name == "user-code-error"


def test_two_dtypes_are_told_as_torch_tells_them():
    """By a norm, an optimizer's lerp and an RNN."""
    torch = pytest.importorskip("torch", reason="the training libraries are not installed")
    full, half = torch.zeros(2, 4), torch.zeros(2, 4).bfloat16()
    for action in (
        lambda: torch.nn.BatchNorm1d(4).half()(full),
        lambda: torch.lerp(full, full, half),
        lambda: torch.nn.LSTM(4, 4).bfloat16()(full),
    ):
        assert diagnose(_caught(action)).name == "bf16-dtype-mismatch"


def test_an_assertion_on_the_device_is_told_though_its_line_was_wrapped():
    """Between the kernel and what it asserts."""
    log = "../aten/Indexing.cu:1308: indexSelectLargeIndex:\n  Assertion `srcIndex < size` failed.\n"
    assert diagnose(log.encode()).name == "device-side-assert"


def test_a_task_that_a_shutdown_cancels_did_not_fail_by_itself():
    """What was raised before it did."""
    told = diagnose(f"{FRAME}asyncio.exceptions.CancelledError\n{KEY}".encode())
    assert told.line == KEY.strip()
    assert diagnose(f"{FRAME}asyncio.exceptions.CancelledError\n".encode()).name == "unknown"


def test_an_assertion_on_the_device_hides_behind_a_full_card():
    """cuBLAS says that it has no memory when a kernel failed before it."""
    log = f"{FRAME}RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"
    assert diagnose(log.encode()).name == "cuda-oom"
    assert diagnose((log + dict(ENDINGS)["device-side-assert"]).encode()).name == "device-side-assert"


def test_every_class_is_shown_by_a_log_or_is_the_agents_own_finding():
    """A row that no log reaches would be dead; a hang leaves none."""
    assert {failure.name for failure in FAILURES} - {name for name, _ in ENDINGS} == {"hang"}
    assert set(TABLE) <= set(BY_NAME)


AROUND = {
    "a rank's prefix": lambda line: f"[rank1]: {line}",
    "a time": lambda line: f"2024-05-01T10:00:00.123456789Z {line}",
    "compose": lambda line: f"trainer-1  | {line}",
    "ray and colours": lambda line: f"\x1b[36m(RayWorker pid=4009, ip=10.0.0.1)\x1b[0m {line}",
    "Kaggle": lambda line: f"704.7s\t1455\t{line}",
    "a clock": lambda line: f"[12:00:07] {line}",
    "a comment": lambda line: f"# {line}",
    "a comment in a script": lambda line: f"    # {line}",
    "Windows": lambda line: f"{line}\r",
    "a bar before it": lambda line: f" 12%|#2   | 12/100 [00:10<00:20, 9.9it/s]\r{line}",
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize(("name", "log"), ENDINGS)
def test_what_others_put_before_a_line_changes_nothing(name, log, around):
    """Launchers, engines, schedulers, terminals."""
    assert diagnose("\n".join(map(around, log.splitlines())).encode()).name == name


FRONTS = {
    "a host": "worker-1: {line}",
    "a stream": "stderr: {line}",
    "a logger": "2024-05-01 10:00:00,{number} - ERROR - {line}",
    "a number": "{number:>5}  [rank1]: {line}",
}


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
@pytest.mark.parametrize(("name", "log"), [one for one in ENDINGS if FRAME in one[1]])
def test_what_stands_before_each_line_of_a_traceback_is_learnt_from_it(name, log, front):
    """There are more loggers than anybody could list."""
    lines = enumerate(log.splitlines(), start=98)
    fronted = "\n".join(front.format(number=number, line=line) for number, line in lines)
    assert diagnose(fronted.encode()).name == name


CELL = """KeyError                 Traceback (most recent call last)
<ipython-input-4-aa> in <module>
      1 try_it()
----> 2 x["loss"]
      3 raise ValueError("CUDA out of memory")
"""


@pytest.mark.parametrize("indent", ["", "    "])
def test_a_notebooks_traceback_is_read(indent):
    """Its message counts, not the source that it quotes; where that is cut off, the type and the source are all there is."""
    cell, said = CELL, "KeyError: 'loss'"
    for log, name in (
        (f"{cell}\n{said}\n", "user-code-error"),
        (cell.replace("out of", "out with"), "user-code-error"),
        (cell, "cuda-oom"),
        (cell.replace("KeyError", "OutOfMemoryError").replace("out of", "x"), "cuda-oom"),
        (cell.replace("KeyError", "ImportError").replace("out of", "x"), "missing-dependency"),
        (cell.replace("KeyError", "RuntimeError").replace("out of", "x"), "unknown"),
    ):
        told = diagnose("".join(f"{indent}{line}\n" for line in log.splitlines()).encode())
        assert told.name == name
        assert said in log or told.number in (1, 5)
        assert said not in log or told.line == said


def test_a_traceback_within_torchruns_report_is_read():
    """It stands further in than one that Python prints."""
    nested = "".join(f"  {line}\n" for line in (FRAME + KEY).splitlines()).replace(
        "  Tr", "  traceback : Tr", 1
    )
    told = diagnose((BY_TORCHRUN % 1 + nested).encode())
    assert (told.name, told.line) == ("user-code-error", KEY.strip())


@pytest.mark.parametrize(("name", "log"), ENDINGS)
def test_a_log_that_was_wrapped_reads_the_same(name, log):
    """At blanks, at the margin or further in."""
    for wrapped in (
        re.sub(r"(\S.{50,}?\S) (?=\S)", r"\1\n", log),
        re.sub(r"(\S.{40,}?\S) (?=\S)", r"\1\n    ", log),
    ):
        assert diagnose(wrapped.encode()).name == name


@pytest.mark.parametrize("at", range(70))
def test_a_line_that_a_terminal_broke_is_whole(at):
    """Within words as well, for it looks at its width alone."""
    line = f"{'x' * at} stderr: nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please update"
    broken = "\n".join(
        re.findall(".{1,80}", f"{line} your driver to a newer version, or use an earlier container")
    )
    told = diagnose(f"$ docker run\n{broken}\nexit status 1\n".encode())
    assert told.name == "driver-too-old"
    assert 2 <= told.number <= 3


AFTER_A_CAUSE = [(name, log) for name, log in ENDINGS if name not in ("none", "unknown", "nan-divergence")]
LAST = ("host-oom-killed", "preempted", "ssh-connection-lost", "nccl-error")


@pytest.mark.parametrize(("name", "log"), [one for one in AFTER_A_CAUSE if one[0] not in LAST])
def test_a_cause_wins_over_the_cascade_behind_it_and_the_warnings_before(name, log):
    """The earliest initiating line, with its number; other ranks, the launcher and the kernel come later."""
    expected = "driver-too-old" if name in ("bf16-unsupported", "no-gpu-in-container") else name
    told = diagnose((WARNINGS + log + CASCADE + "Killed\n").encode())
    assert told.name == expected
    if expected == name:
        assert 5 < told.number <= 5 + log.count("\n")
        assert told.line in log


@pytest.mark.parametrize("name", ["bf16-unsupported", "no-gpu-in-container"])
def test_a_warning_is_the_cause_of_what_it_explains(name):
    """It is named with its own line."""
    told = diagnose((WARNINGS + dict(ENDINGS)[name]).encode())
    assert (told.name, told.number) == ("driver-too-old", 1)


def test_warnings_alone_are_none():
    """Nothing failed."""
    assert diagnose(WARNINGS.encode()).name == "none"


@pytest.mark.parametrize(
    "line",
    [
        "To avoid CUDA out of memory errors, gradient checkpointing is on.",
        "CUDA out of memory. Reducing batch size to 4.",
        "2024-01-01 10:00:00.5: E tensorflow/cuda_driver.cc:2] failed call to cuInit: CUDA_ERROR_NO_DEVICE",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 16384, reducing to 8192",
        "Epoch 0: 10%|#  | 1/9 [00:10<01:30, 1.00it/s, v_num=3, loss=1.20, val_loss=nan]",
    ],
)
def test_advice_and_what_is_not_known_yet_are_no_failure(line):
    """A program speaks of failures that it guards against."""
    assert diagnose(f"{line}\nstep 1 done\n".encode()).name == "none"


GOOD = "{'loss': 1.2, 'grad_norm': 0.5, 'learning_rate': 1e-05}\n"
DONE = "{'train_runtime': 10.0, 'train_loss': 1.2}\n"


def test_what_the_training_went_on_after_is_no_cause():
    """Caught, and trained on: it stands neither for a good end nor for another failure."""
    assert diagnose((FRAME + OOM + GOOD + DONE).encode()).name == "none"
    assert diagnose((FRAME + OOM + GOOD + FRAME + KEY).encode()).name == "user-code-error"


def test_a_loss_that_recovers_is_no_divergence():
    """One that stays lost is, whatever the exit status."""
    bad = "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 0.0}\n"
    assert diagnose((bad + GOOD + DONE).encode()).name == "none"
    told = diagnose((GOOD + bad + bad + DONE).encode())
    assert (told.name, told.number) == ("nan-divergence", 2)


def test_what_must_not_be_retried_is_not_taken_for_what_is():
    """A scheduler that ends the other nodes, and Python's word of a dead object, come behind the script's own mistake."""
    behind = "slurmstepd: error: *** STEP 1.0 ON n CANCELLED AT 2024-01-01T00:00:00 ***\n"
    assert diagnose((FRAME + KEY + CASCADE + behind).encode()).name == "user-code-error"
    ignored = f"Exception ignored in: <function A.__del__>\n{FRAME}AttributeError: no x\n"
    assert diagnose((GOOD + ignored + DONE).encode()).name == "none"
    assert diagnose((ignored + FRAME + OOM).encode()).name == "cuda-oom"
    worker = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n"
    assert (
        diagnose(f"{GOOD}Exception ignored in: <function A.__del__>\n{FRAME}{worker}".encode()).name == "none"
    )


@pytest.mark.parametrize(
    ("ended", "log", "name"),
    [
        (ProcessEnd(signal=9), "", "host-oom-killed"),
        (ProcessEnd(exit=137), GOOD, "host-oom-killed"),
        (ProcessEnd(signal=15), GOOD, "preempted"),
        (ProcessEnd(exit=3), GOOD, "unknown"),
        (ProcessEnd(exit=0), GOOD, "none"),
        (ProcessEnd(), "", "unknown"),
        (ProcessEnd(exit=1, oom_kills=True), FRAME + KEY, "host-oom-killed"),
        (ProcessEnd(signal=9), FRAME + OOM, "cuda-oom"),
    ],
)
def test_exit_status_signal_and_the_kernels_word_count_beside_the_log(ended, log, name):
    """They stand where the log names no cause."""
    assert diagnose(log.encode(), ended).name == name


def test_ten_megabytes_are_read_in_a_second():
    """Of metrics, of bars and of prose; the line's number is that of the file."""
    words = [f"w{number}x" for number in range(5000)]
    pick = random.Random(1).choice
    prose = "".join(" ".join(pick(words) for _ in range(15)) + "\n" for _ in range(110_000))
    bars = "".join(
        f"\r {at * 100 // 90000}%|{'#' * (at // 2250):40}| {at}/90000 [0<0, 9.9it/s]" for at in range(90_000)
    )
    for log in (GOOD * 180_000, f"{bars * 2}\n", prose, (FRAME + KEY) * 100_000):
        assert len(log) > 8e6
        start = time.process_time()
        told = diagnose((log + FRAME + OOM).encode())
        assert time.process_time() - start < 1.0
        assert (told.name, told.number) == ("cuda-oom", log.count("\n") + 4)


def test_every_sign_can_be_found():
    """Phrases are sought in a log in lower case, and every pattern is one to Python 3.8 as well: no possessive quantifier."""
    for failure in FAILURES:
        for signs in (failure.causes, failure.ends, failure.echoes, failure.hints):
            for phrase, pattern in patterns(signs):
                assert phrase == phrase.lower()
                assert re.compile(pattern)
                assert not re.search(r"[+*?}]\+", pattern), pattern


def test_a_module_that_is_noted_as_missing_is_no_cause_if_another_mistake_ended_the_script():
    """A library may do without it; a name that was to come from the module may not."""
    notice = "import error: No module named 'triton'\nINFO: resolved config\n"
    missing = diagnose(f"{notice}{FRAME}omegaconf.errors.ConfigAttributeError: Missing key rank\n".encode())
    assert (missing.name, missing.number) == ("user-code-error", 6)
    for line in (
        "NameError: name 'triton' is not defined",
        "AttributeError: 'NoneType' object has no attribute 'jit'",
    ):
        assert diagnose(f"{notice}{FRAME}{line}\n".encode()).name == "missing-dependency"
    assert diagnose(notice.encode(), ProcessEnd(exit=1)).name == "missing-dependency"


def test_a_traceback_without_a_line_of_the_script_points_at_arguments_and_data():
    """As of a program that a package ships. A line of one's own is the one to read."""
    inside = '  File "/env/lib/python3.11/site-packages/tool/{}.py", line 9, in run\n    run()\n'
    head = 'Traceback (most recent call last):\n  File "/env/bin/tool", line 7, in <module>\n    main()\n'
    error = "ValueError: no such stage: sft2\n"
    shipped = diagnose(f"{head}{inside.format('cli')}{inside.format('data')}{error}".encode())
    assert (shipped.name, "one row of the data" in shipped.mend) == ("user-code-error", True)
    own = diagnose(f"{FRAME}{inside.format('data')}{error}".encode())
    assert (own.name, "your own code" in own.mend) == ("user-code-error", True)
