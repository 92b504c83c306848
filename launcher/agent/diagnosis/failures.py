"""The table of failure classes: the signs of each in a log, why it happens and how to fix it.

A sign is a lower-case phrase, or a phrase with a regular expression whose match must include it. A blank
matches any white space, because logs are wrapped. The four kinds of sign are:

    causes   show the cause of the failure
    ends     show how the end looked from outside (a signal, a scheduler's message); used if no cause is found
    echoes   show other ranks' errors about a rank that died; used if no other sign is found
    hints    are warnings, harmless alone; each is the cause of a later failure of a class that its row `explains`

Sources: messages of torch 1.9 to 2.13, transformers 4 and 5, accelerate, peft, bitsandbytes, safetensors,
huggingface_hub, NCCL, the NVIDIA driver and container toolkit, Docker, OpenSSH, paramiko, Slurm and the Linux
kernel.
"""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple, Tuple, Union

Sign = Union[str, Tuple[str, str]]
Signs = Tuple[Sign, ...]


class FailureClass(NamedTuple):
    """A class of failure: its signs, why it happens, how to fix it.

    `explains` names the classes that its hints cause. `encloses` names the classes that are a detail of this one if a
    log has signs of both.
    """

    name: str
    why: str
    mend: str
    causes: Signs = ()
    ends: Signs = ()
    echoes: Signs = ()
    hints: Signs = ()
    explains: Tuple[str, ...] = ()
    encloses: Tuple[str, ...] = ()


# The start of the line that names an exception.
_BEGINS = r"^(?:[\w.]+\.)?\w+(?:Error|Exception): [^\n]{0,120}"


def _raised(*phrases: str) -> Signs:
    """Return a sign for each phrase that matches it early in an exception's message, and not in a warning."""
    return tuple((phrase, _BEGINS + re.escape(phrase).replace("\\ ", " ")) for phrase in phrases)


# Two dtypes in either order, at least one of them 16-bit. A mismatch with integers or doubles is the script's
# mistake.
_HALF = r"(?:c10::|torch\.(?:cuda\.)?)?(?:b?float16|bfloat16|half)(?:tensor)?"
_FLOAT = r"(?:c10::|torch\.(?:cuda\.)?)?(?:float32|float|b?float16|bfloat16|half)(?:tensor)?"
_TWO = r"(?:%s\b\W+(?:\w+\W+){0,4}%s\b|%s\b\W+(?:\w+\W+){0,4}%s\b)" % (_HALF, _FLOAT, _FLOAT, _HALF)
# The text between the name of a value and the value.
_IS = r"""[\]'"]*(?:\s*[:=]\s*|\s)['"]?(?:tensor\()?[-+]?"""
# The Xid errors of hardware and bus. A program causes 13, 31, 43 and 45 itself.
_LOST_XIDS = r"(?:48|6[1-4]|7[49]|9[2-5]|109|110|119|120|136|14[0-9]|15[0-9])"

FAILURES = (
    FailureClass(
        "not-rehearsable",
        "the script needs a feature that a rehearsal on a CPU cannot imitate",
        "run it on the card: the same command without --rehearse; or have the script do without it",
        causes=(("not rehearsable: ", r"^(?:[\w.]*NotRehearsableError: )?not rehearsable: "),),
    ),
    FailureClass(
        "fp16-unscale",
        "a trainable parameter is float16 while the gradient scaler is on",
        "keep trainable parameters in float32: call model = worker.prepare(model) after adding adapters and before creating the optimizer",
        causes=("attempting to unscale fp16 gradients",),
    ),
    FailureClass(
        "bf16-unsupported",
        "bfloat16 needs a card of compute capability 8.0 or higher",
        "let the plan choose the precision: TrainingArguments(**worker.training_arguments(...)) instead of bf16=True",
        causes=(
            "your setup doesn't support bf16",
            "current cuda device does not support bfloat16",
            "bfloat16 is only supported on gpus with compute capability",
            ("feature '.bf16' requires", r"feature '\.bf16' requires \.target sm_"),
            ("cuda_r_16bf", r"CUBLAS_STATUS_NOT_SUPPORTED[\s\S]{0,300}CUDA_R_16BF"),
            (
                "bf16 mixed precision requires",
                r"bf16 mixed precision requires PyTorch >= \S+ and a supported device",
            ),
            (
                "not supported",
                r"\b(?:bf16|bfloat16)\b(?!.*\bMPS\b)[^\n]{0,60} not supported (?:on|by) (?:this|your|the) (?:GPU|device|card)",
            ),
        ),
    ),
    FailureClass(
        "bf16-dtype-mismatch",
        "tensors of different dtypes were combined: the model was cast after its optimizer had state, or part of it was never cast",
        "do not cast the model during training: load it in the dtype that the plan gives, and use autocast",
        causes=(
            ("expected dtype", r"expected dtype %s for `\w+` but got dtype %s" % (_FLOAT, _FLOAT)),
            ("expected scalar type", r"expected scalar type " + _TWO),
            ("found dtype", r"Found dtype " + _TWO),
            ("must have the same dtype", r"must have the same dtype\b[\s\S]{0,30}?" + _TWO),
            ("does not match weight dtype", r"input dtype [^\n]*does not match weight dtype[^\n]*" + _HALF),
            ("to have the same dtype", r"to have the same dtype\b[\s\S]{0,60}?" + _TWO),
            ("destination dtypes match", r"destination dtypes match, got " + _TWO),
            ("with uniform dtype but got", r"with uniform dtype but got " + _TWO),
            "mixed dtype (cpu): expect parameter to have scalar type of float",
            ("should be the same", r"(?:input|bias) type \W*" + _TWO + r"\W+should be the same"),
            (
                "not implemented for 'bfloat16'",
                r"(?:_amp_foreach_non_finite_check_and_unscale\w*\W+|_unscale_\w*[^\n]*\n[^\n]*)not\s+implemented\s+for\s+'BFloat16'",
            ),
            (
                "not implemented for 'bfloat16'",
                r"_unscale_grads_[\s\S]{0,300}not\s+implemented\s+for\s+'BFloat16'",
            ),
        ),
    ),
    FailureClass(
        "nan-divergence",
        "the loss or its gradients became non-finite and stayed so",
        "lower the learning rate, clip the gradients, and check the data of that step; resume from an earlier checkpoint with a safer precision",
        causes=(
            ("is nan", r"\bloss\b[^\n]{0,40} is nan\b(?!\s*(?:or|if|when)\b)"),
            (
                "nan",
                r"\b(?:loss|gradients?|grad_norm)\b[^\n]{0,20}\b(?:became|becomes|turned|went) (?:to )?(?:infinite or )?(?:nan|inf)\b",
            ),
            ("diverged", r"\b(?:loss|training|model) (?:has )?diverged(?=\W*$|[,.!:]| with\b| at\b)"),
            ("returned nan values", r"Function '\w+' returned nan values in its \S+ output"),
            ("tripped: nan-divergence", r"\bTripped: nan-divergence"),
            "minimum loss scale reached",
            "current loss scale already at minimum",
            ("attempted loss scale", r"Attempted loss scale: 1(?:\.0)?, reducing to 1(?:\.0)?$"),
            ("nan loss", r"\bnan loss (?:encountered|detected|at|in|for)\b"),
            ("non-finite", r"non-finite (?:loss|gradient)\S*"),
            ("probability tensor contains", r"probability tensor contains either `?inf"),
            ("nan", _BEGINS + r"\bnan\b[^\n]{0,30}\b(?:in|for)\b[^\n]{0,30}(?:loss|grad|output|weights)"),
        ),
        ends=(
            ("nan", r"(?<![a-z])(?<!\bval_)(?<!\bbest_)loss(?:_\w+)?%snan(?:\.0)?\b" % _IS),
            ("nan", r"\bgrad[_ ]norm%snan(?:\.0)?\b" % _IS),
        ),
    ),
    FailureClass(
        "not-learning",
        "the weights do not change, or the loss is exactly zero",
        "check that some parameters are trainable (requires_grad), that the learning rate is above 0, and that not all labels are ignored",
        causes=(("tripped: not-learning", r"\bTripped: not-learning"),),
    ),
    FailureClass(
        "cuda-oom",
        "the card ran out of memory",
        "halve the micro-batch and double the accumulation; at micro-batch 1, use activation checkpointing; if other processes use the card, take another one",
        causes=(
            ("out of memory", r"\b(?:CUDA|HIP|XPU|NPU|MPS backend) out of memory"),
            (
                "out of memory",
                r"\b(?:CUDA|HIP|NCCL) (?:runtime )?(?:error|failure|failed)\b[^\n]{0,80}\bout of memory",
            ),
            ("outofmemoryerror", r"^(?:[\w.]+\.)?OutOfMemoryError Traceback"),
            "is reserved by pytorch but unallocated",
            ("oom when allocating tensor", r"OOM when allocating tensor[^\n]*device:GPU"),
            "cuda_error_out_of_memory",
            "cudaerrormemoryallocation",
            "cublas_status_alloc_failed",
            "cudnn_status_alloc_failed",
            "cudnn_status_not_initialized",
            ("torch.outofmemoryerror", r"\btorch\.OutOfMemoryError:"),
            "torch.cuda.outofmemoryerror:",
            "resource_exhausted: out of memory",
            "no available memory for the cache blocks",
            (
                "free memory on device",
                r"free memory on device[\s\S]{0,80}less than desired GPU memory utilization",
            ),
        ),
    ),
    FailureClass(
        "shm-too-small",
        "data loader workers pass batches through /dev/shm, and it is full",
        "give the container more shared memory (--shm-size=8g or --ipc=host), or use fewer loader workers",
        causes=(
            "insufficient shared memory",
            "unexpected bus error encountered in worker",
            ("bus error", r"killed by signal: bus error"),
            "out of shared memory. please try to raise your shared memory limit",
            ("unable to write to file", r"unable to write to file </torch_"),
            (
                "unable to open shared memory",
                r"unable to open shared memory object </?\S+ in (?:read-)?write mode[^\n]*(?:no space|cannot allocate)",
            ),
            ("unable to mmap", r"unable to mmap \d+ bytes from file </torch_"),
            (
                "no space left on device",
                r"(?:/dev/shm|shared_memory\.py|/torch_\d+|\bshm\w*\.(?:h|cc):)[\s\S]{0,400}no space left on device",
            ),
            (
                "shm",
                r"no space left on device[^\n]{0,80}/dev/shm|/dev/shm[^\n]{0,40}(?:is full|too small)",
            ),
            ("bus error", r"bus error[^\n]*(?:shared memory|shm)"),
            ("error while creating shared memory", r"error while creating shared memory segment"),
        ),
        ends=(
            ("bus error", r"(?:^|: )bus error\b|\(SIGBUS\)"),
            ("sigbus", r"\bSIGBUS\b"),
            ("return code", r"exits with return code = -7\b"),
        ),
    ),
    FailureClass(
        "host-oom-killed",
        "the host or the container ran out of memory, and the kernel killed a process",
        "use fewer loader workers or more memory; to confirm, look for oom_kill in dmesg or memory.events",
        causes=(
            ("oom_kill", r"Detected \d+ oom[-_]kill event"),
            ("oom-kill", r"Detected \d+ oom[-_]kill event|\boom-kill:constraint|invoked oom-killer"),
            ("oom_kill", r"\boom_kill \W*[1-9]"),
            ("oom-killer", r"invoked oom-killer"),
            "out of memory: kill",
            ("oom-kill", r"\bexited: oom-kill"),
            ("out of memory", r"^srun: error: \S+ tasks? \S+ Out Of Memory"),
            ("memory limit", r"\bexceeded (?:\w+ )?memory limit\b|\bTERM_MEMLIMIT\b"),
            ("job killed", r"PBS: job killed: p?v?mem\b"),
            "may have exceeded k8s pod memory limits",
            "the node was low on resource: memory",
            "crashed after using all available ram",
            "tried to allocate more memory than is available",
            ("memory pressure", r"Workers[^\n]{0,60} killed due to memory pressure"),
            ("oomkilled", r'OOMKilled"?\W+(?:true|exit|1)|reason\W+OOMKilled|\bOOMKilled\s*$'),
            ("oom killed", r"\b(?:been|was) OOM Killed\b"),
            "killed by the cgroup out-of-memory handler",
            ("out-of-memory handler", r"killed by[\s\S]{0,30}out-of-memory handler"),
            ("killed by signal: killed", r"worker \(pid[^)]*\) is killed by signal: Killed"),
            "defaultcpuallocator: can't allocate memory",
            "defaultcpuallocator: not enough memory",
            (
                "cannot allocate memory",
                r"\[Errno 12\] Cannot allocate memory|fork: (?:retry: )?Cannot allocate memory",
            ),
            ("memoryerror", r"^(?:numpy\.\S+\.)?_?(?:Array)?MemoryError\b"),
            ("due to the node running low on memory", r"killed due to the node running low on memory"),
            ("std::bad_alloc", r"what\(\):\s+std::bad_alloc"),
        ),
        ends=(
            ("exitcode", r"exitcode\s*:\s*-9\b"),
            ("exit code", r"exit(?:ed with)? (?:code|status)\W{0,3}(?:-9|137)\b"),
            ("code 137", r"\bcode 137\b"),
            ("exit status", r"exit status\W{0,2}(?:-9|137)\b"),
            ("returned", r"returned(?: a)?(?: non-?zero)?(?: exit)?(?: status| code)?\W{1,3}(?:-9|137)\b"),
            (
                "sigkill",
                r"died with <Signals\.SIGKILL|signal 9 \(SIGKILL\) received by PID|terminated with signal SIGKILL|SIGKILL\(-9\)",
            ),
            ("exits with return code", r"exits with return code = (?:-9|137)\b"),
            (
                "killed",
                r"^Killed\.?$|^(?:\S+: )?line \d+:\s+\d+ Killed\b|^\[\d+\]\W+\d*\s*Killed\b|^/\S+: line \d+:\s+\d+ Killed\b",
            ),
            ("killed", r"^\S*(?:sh|bash)?:?\s?.*\b\d{2,} Killed  "),
            ("out_of_me", r"(?-i:\bOUT_OF_ME(?:MORY\b|\+))"),
            ("signal 9", r"(?:killed|terminated|exited|received|died)[^\n]{0,30}signal:? 9\b"),
            ("exited with", r"exited with (?:code|status)?\s?(?:137|-9)\b"),
        ),
    ),
    FailureClass(
        "port-in-use",
        "another process listens on the port where the ranks connect, often a leftover of a crash",
        "use another port (--master-port), or end the run that still uses it",
        causes=(
            ("eaddrinuse", r"EADDRINUSE"),
            ("address already in use", r"^(?!.*\[W)(?!.*errno: 98).*address already in use"),
            "failed to listen on any local network address",
            "but another process is utilizing it",
            "only one usage of each socket address",
            "port is already allocated",
            ("already in use", r"\bport `?\d+`? (?:is )?already in use(?!.{0,40}(?:trying|using|instead))"),
        ),
        ends=(("already in use", r"failed to bind to[\s\S]{0,80}already in use"),),
    ),
    FailureClass(
        "gpu-busy-exclusive",
        "the card is in exclusive mode and another process uses it (a leftover, or another rank of this run), or the card is faulty",
        "end the process that uses it (nvidia-smi --query-compute-apps=pid,process_name --format=csv), give each rank its own card, or use another card",
        causes=(
            ("busy or unavailable", r"devices?(?:\(s\))? (?:is/are |are |is )?busy or unavailable"),
            "cudaerrordevicesunavailable",
            "cuda_error_device_unavailable",
            "exclusive-thread device already in use",
            "mps client failed to connect to the mps control daemon",
        ),
    ),
    FailureClass(
        "no-kernel-image",
        "this build of torch or of an extension has no code for this card, which is too old or too new for it",
        "use another image: compare torch.cuda.get_arch_list() with the card; P100 and V100 need cu126, new cards cu128 or later",
        causes=(
            "no kernel image is available",
            "cudaerrornokernelimagefordevice",
            "cuda_error_no_binary_for_gpu",
            "cudnn_status_arch_mismatch",
            ("is not defined for option", r"value 'sm_\w+' is not defined for option 'gpu-name'"),
            ("unsupported gpu architecture", r"unsupported gpu architecture 'compute_"),
            ("was built for sm", r"is for sm\S*, but was built for sm"),
            "cublas_status_arch_mismatch",
            "cuda error: invalid device function",
            ("too old to be supported by", r"too old to be supported by the triton GPU compiler"),
            ("only supports ampere", r"FlashAttention only supports Ampere GPUs or newer"),
            ("named symbol not found", r"^Error named symbol not found at line \d+ in file"),
            ("data type is not supported on cuda arch", r"data type is not supported on CUDA arch"),
        ),
    ),
    FailureClass(
        "driver-too-old",
        "the host's NVIDIA driver is too old for the CUDA version of this image",
        "use an image with an older CUDA version (a cuXXX build of torch that the driver supports), or install a newer driver on the host",
        causes=(
            ("nvidia driver on your system is too old", r"The NVIDIA driver on your system is too old"),
            "driver version is insufficient for cuda runtime version",
            "cudaerrorinsufficientdriver",
            ("unsatisfied condition: cuda", r"unsatisfied condition: cuda\W"),
            ("unsatisfied condition: driver", r"unsatisfied condition: driver\W"),
            "forward compatibility was attempted on non supported hw",
            "provided ptx was compiled with an unsupported toolchain",
            "cuda_error_unsupported_ptx_version",
            "unsupported display driver / cuda driver combination",
        ),
        hints=(
            ("nvidia driver on your system is too old", r"The NVIDIA driver on your system is too old"),
            ("cuda driver version is insufficient", r"driver version is insufficient"),
        ),
        explains=("bf16-unsupported", "no-gpu-in-container"),
    ),
    FailureClass(
        "no-gpu-in-container",
        "the process sees no NVIDIA GPU: it was given none, the container toolkit is not set up, or its container lost the GPU",
        "start it with --gpus all (apptainer: --nv) and nvidia-container-toolkit; if the GPU was lost while it ran, start a "
        "new container; for 'version mismatch', reboot the host or reload the driver",
        causes=(
            (
                "could not select device driver",
                r"could not select device driver \S*\s?with capabilities: \[\[(?:.*)gpu",
            ),
            "found no nvidia driver on your system",
            "no cuda gpus are available",
            "no cuda-capable device is detected",
            "cudaerrornodevice",
            "cuda_error_no_device",
            (
                "cannot open shared object file",
                r"lib(?:nvidia-ml|cuda)\.so(?:\.\d+)*: cannot open shared object file",
            ),
            ("libnvidia-ml.so", r"load library failed: libnvidia-ml\.so"),
            ("nvml", r"failed to initialize NVML"),
            (
                "nvml",
                r"\bNVML(?: Shared)? (?:Library Not Found|error: driver not loaded)|nvml error: driver not loaded",
            ),
            ("nvidia-container-cli", r"nvidia-container-cli: (?!requirement )\w+ error"),
            (
                "nvidia-container-runtime",
                r"nvidia-container-runtime\W+(?:executable file )?(?:not found|no such file)",
            ),
            *_raised(
                "no gpu", "no nvidia gpu", "no supported gpu", "no accelerator", "failed to infer device type"
            ),
            *_raised("gpu is required", "you need a gpu", "requires a gpu (not 'cpu')"),
            *_raised("cuda is not available", "gpu is not available", "cuda is unavailable"),
            *_raised("torch.cuda.is_available() is false"),
            "your machine only has: []",
            ("cuda driver initialization failed", r"CUDA driver initialization failed"),
            ("cuda driver is a stub library", r"CUDA driver is a stub library"),
            ("system not yet initialized", r"(?:Error 802|CUDA error): system not yet initialized"),
            ("invalid cuda", r"Invalid CUDA 'device=\S+' requested[\s\S]{0,400}is_available\(\)\W+False"),
            (
                "nvidia-smi has failed",
                r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
            ),
            ("unresolvable cdi devices", r"unresolvable CDI devices \S*nvidia"),
            ("runtime name: nvidia", r"unknown or invalid runtime name: nvidia"),
            ("libnvidia-container", r"libnvidia-container\S*: .*(?:failed|error)"),
            ("no devices were found", r"^No devices were found"),
            (
                "cuda unknown error",
                r"CUDA unknown error - this may be due to an incorrectly set up environment",
            ),
        ),
        hints=(
            ("nvidia driver was not detected", r"NVIDIA Driver was not detected"),
            ("no nvidia driver", r"Found no NVIDIA driver"),
            ("is_available", r"cuda[\w.]*is_available\W{1,6}(?:\s|[=>:])*False"),
            ("cuda available", r"CUDA available\W+False"),
            (
                "no cuda",
                r"No CUDA GPUs are available|no CUDA-capable device is detected|No CUDA runtime is found",
            ),
            ("nvml", r"Can't initialize NVML|Failed to initialize NVML"),
            ("cuda", r"CUDA is not available|Torch not compiled with CUDA enabled"),
            ("nvidia-smi", r"nvidia-smi: (?:command )?not found"),
        ),
        explains=("bf16-unsupported",),
    ),
    FailureClass(
        "gpu-lost",
        "the card failed: an uncorrectable memory error, or it fell off the bus",
        "continue on another card; reset this GPU, and replace it if it fails again",
        causes=(
            "uncorrectable ecc error",
            "cudaerroreccuncorrectable",
            "cuda_error_ecc_uncorrectable",
            "uncorrectable nvlink error",
            "fallen off the bus",
            ("xid", r"\bXid\s*\(PCI:[^)]*\):\s*%s\b" % _LOST_XIDS),
            ("xid", r"\bXid[ :=]+%s\b" % _LOST_XIDS),
            "nv_err_gpu_is_lost",
            "invalid access of peer gpu memory over nvlink or a hardware error",
            ("gpu is lost", r"GPU is lost\b"),
            ("unable to determine the device handle", r"unable to determine the device handle for GPU"),
            ("ecc error", r"double[- ]bit ECC error"),
            ("gpu recovery action", r"GPU recovery action changed"),
        ),
    ),
    FailureClass(
        "device-side-assert",
        "a CUDA kernel got an index or a label out of range, nearly always a token or class beyond the model's size; every later CUDA call repeats the error",
        "fix the data or the vocabulary: run one batch on the CPU or with CUDA_LAUNCH_BLOCKING=1 to see where it fails",
        causes=(
            "device-side assert triggered",
            "cudaerrorassert",
            "cuda_error_assert",
            ("assertion", r"(?:block: \[[\d,]+\], )?thread: \[[\d,]+\] Assertion\b"),
            ("assertion", r"\.cuh?:\d+[\s\S]{0,300}?\bAssertion\b[^\n]*failed"),
        ),
        encloses=("cuda-oom",),
    ),
    FailureClass(
        "wrong-device-ordinal",
        "a rank asked for a card that it cannot see: there are more processes than visible GPUs",
        "start as many processes as there are visible cards: set --nproc-per-node or CUDA_VISIBLE_DEVICES",
        causes=(
            "invalid device ordinal",
            "cudaerrorinvaliddevice",
            "cuda_error_invalid_device",
            ("invalid device id", r"AssertionError: Invalid device id"),
            ("invalid cuda", r"Invalid CUDA 'device=\S+' requested"),
            ("device < num_gpus", r"device >= 0 && device < num_gpus"),
            ("your machine only has:", r"your machine only has: \[\d"),
            "duplicate gpu detected",
            ("device_count() is", r"object on CUDA device \d+ but torch\.cuda\.device_count\(\) is [1-9]"),
        ),
    ),
    FailureClass(
        "checkpoint-corrupt",
        "a file of weights or state is damaged, truncated, or only a pointer to the file; every retry reads the same bytes",
        "resume from the checkpoint before it, or fetch the file again; check its size and SHA-256",
        causes=(
            ("pytorchstreamreader failed", r"PytorchStreamReader failed(?!.*not in a subdirectory)"),
            (
                "error while deserializing",
                r"SafetensorError: Error while deserializing|Error while deserializing header",
            ),
            ("unsupported operand", r"WeightsUnpickler error:\s+Unsupported operand \d"),
            ("eoferror", r"(?:serialization|_weights_only_unpickler)\.py\W[\s\S]{0,400}\bEOFError\b"),
            ("header", r"\b(?:HeaderTooLarge|HeaderTooSmall|InvalidHeader\w*|InvalidHeaderLength)\b"),
            "metadataincompletebuffer",
            "incomplete metadata, file not fully covered",
            "eoferror: ran out of input",
            ("unpicklingerror", r"UnpicklingError: (?!Weights only load failed)"),
            ("inline_container.cc", r"inline_container\.cc:\d+\][ .]+file not found: \S+/data/"),
            "corrupt file?",
            ("truncated file", r"unable to (?:synchronously )?open file \(truncated file"),
            "pickle data was truncated",
            "unexpected eof, expected",
            ("file might be corrupted", r"the file might be corrupted"),
            ("zip", r"BadZipFile: (?:File is not a zip file|Bad magic)|not a ZIP archive"),
            ("invalid header or archive is corrupted", r"invalid header or archive is corrupted"),
            (
                "unable to load weights",
                r"Unable to load weights from (?:pytorch )?(?:checkpoint|safetensors) file",
            ),
            ("storage has wrong", r"storage has wrong (?:byte )?size"),
            "seems to be corrupted",
            ("checksum", r"checkpoint[^\n]{0,60}checksum mismatch|checksum mismatch[^\n]{0,60}checkpoint"),
        ),
    ),
    FailureClass(
        "disk-full",
        "a file system is full, or a quota is used up",
        "free space on the file system that the line names (old checkpoints, caches, TMPDIR), then continue from the last complete checkpoint; the one being written is damaged",
        causes=(
            ("no space left on device", r"^(?!.*inotify).*no space left on device"),
            "disk quota exceeded",
            "not enough space on the disk",
            "not enough disk space",
            "the node was low on resource: ephemeral-storage",
            "database or disk is full",
            "pytorchstreamwriter failed writing",
            ("unexpected pos", r"inline_container\S*[\s\S]{0,60}unexpected pos"),
            ("storagefull", r"kind: StorageFull"),
            ("write error", r"(?:file write failed|write error: (?:disk|no space))"),
        ),
    ),
    FailureClass(
        "shared-file-refused",
        "the script writes into a large file that was sent with it: the host keeps one read-only copy for all runs",
        "give the run its own copy: --set writable='[\"model.pt\"]'; or write a new file and rename it to the old name",
        causes=(
            (
                "/tree/content",
                r"(?:Permission denied|Read-only file system):[\s\S]{0,300}?/store/data/[0-9a-f]{64}/tree/content\b",
            ),
        ),
    ),
    FailureClass(
        "docker-permission",
        "this user has no access to the Docker daemon's socket",
        "add the user to the docker group and log in again, or set sudo = true for the host in launch.toml",
        causes=(
            ("permission denied", r"permission denied while trying to connect to the docker"),
            ("permission denied", r"docker\.sock[^\n]{0,120}permission denied"),
            (
                "permissionerror(13",
                r"docker[\s\S]{0,400}PermissionError\(13|PermissionError\(13[\s\S]{0,200}docker",
            ),
            ("dial unix", r"dial unix [^\n]{0,60}docker[^\n]{0,20}\.sock: connect: permission denied"),
        ),
    ),
    FailureClass(
        "docker-build-failure",
        "a step of the image build failed; the lines above it show the cause (pip, apt, a missing program)",
        "fix the requirements or the Dockerfile and build again: launch image build",
        causes=(
            "resolutionimpossible",
            ("failed to solve", r"failed to solve\b(?!.*(?:no space|permission denied while trying))"),
            ("did not complete successfully", r"did not complete successfully: exit code: \d+"),
            ("returned a non-zero code", r"The command '[^\n]*' returned a non-zero code: \d+"),
            ("conflicting dependencies", r"cannot install\b[\s\S]{0,200}conflicting dependencies"),
            "no matching distribution found for",
            ("requires a different python", r"ERROR: Package '\S+' requires a different Python"),
            "could not find a version that satisfies the requirement",
            "metadata-generation-failed",
            ("failed building wheel", r"ERROR: Failed building wheel for"),
            ("could not build wheels for", r"Could not build wheels for"),
            ("failed to build installable wheels", r"Failed to build installable wheels"),
            ("subprocess-exited-with-error", r"error: subprocess-exited-with-error"),
            ("unable to locate package", r"E: Unable to locate package"),
            ("executor failed running", r"executor failed running \["),
            ("copy failed:", r"^COPY failed: "),
            ("is not signed", r"^E: The repository \S+[^\n]* is not signed"),
            ("dockerfile parse error", r"dockerfile parse error"),
            ("failed to read dockerfile", r"failed to read dockerfile"),
            ("error building image", r"error building image"),
            ("error: failed to build", r"ERROR: failed to build: "),
        ),
        encloses=("missing-dependency", "user-code-error"),
    ),
    FailureClass(
        "ssh-hostkey-mismatch",
        "the host's key differs from the known one: it is another machine, it was reinstalled, or someone intercepts the connection",
        "ask the host's administrator for its fingerprint; if it matches   ssh-keygen -R HOST",
        causes=(
            "remote host identification has changed",
            ("host key", r"host key for \S+ has changed and you have requested strict checking"),
            ("does not match", r"Host key for server '?\S+ does not match"),
            "badhostkeyexception",
            "possible dns spoofing detected",
            "host key verification failed",
            (
                "host key is known for",
                r"No \S+ host key is known for \S+ and you have requested strict checking",
            ),
        ),
    ),
    FailureClass(
        "ssh-auth-failed",
        "the host or a git server rejected all keys that were offered",
        "offer the right key (identity_file, ssh-add), check that only you can read it, and that the host knows its public key",
        causes=(
            (
                "permission denied (",
                r"permission denied \((?:publickey|password|keyboard-interactive|gssapi|hostbased)[^)]*\)",
            ),
            "permission denied, please try again",
            "no more authentication methods",
            "unprotected private key file",
            "too many authentication failures",
            ("authentication failed", r"paramiko\S*SSHException[^\n]*authentication failed"),
            ("authenticationexception", r"\bAuthenticationException\b"),
            ("passwordrequiredexception", r"\bPasswordRequiredException\b"),
            ("unable to authenticate", r"ssh: (?:handshake failed: ssh: )?unable to authenticate"),
            ("no authentication methods available", r"No authentication methods available"),
            ("all configured authentication methods failed", r"All configured authentication methods failed"),
        ),
    ),
    FailureClass(
        "hub-access",
        "the file could not be fetched from Hugging Face: no permission, a wrong name, or no network",
        "no permission: accept the model's terms and pass a token (--secret HF_TOKEN); no network: copy it to ~/.launch/cache/huggingface/hub on the host, and pass -e HF_HUB_OFFLINE=1",
        causes=(
            "gatedrepoerror",
            "repositorynotfounderror",
            "revisionnotfounderror",
            "localentrynotfounderror",
            "cannot access gated repo",
            ("you are trying to access a gated repo", r"trying to access a gated repo"),
            ("is restricted", r"access to (?:model|dataset) \S+ is restricted"),
            (
                "couldn't connect to",
                r"couldn't connect to ['`\"]?(?:https://(?:huggingface\.co|hf-mirror\.com)|the Hugging Face Hub)",
            ),
            (
                "huggingface.co",
                r"\b(?:401|403|404|429) (?:Client Error|Forbidden|Unauthorized|Too Many)[\s\S]{0,80}huggingface\.co",
            ),
            (
                "huggingface",
                r"Failed to (?:resolve|establish)[^\n]*huggingface|HTTPSConnectionPool\(host=\W{1,2}[\w.-]*(?:huggingface\.co|hf\.co|hf-mirror\.com)\W",
            ),
            (
                "huggingface.co",
                r"is not a (?:valid model identifier|local folder and is not a valid model identifier)[\s\S]{0,80}huggingface\.co",
            ),
            "is not a local folder and is not a valid model identifier",
            (
                "co timed out",
                r"Connection to [\w.-]*(?:huggingface\.co|hf\.co|hf-mirror\.com) timed out",
            ),
            (
                "if you were trying to load it from",
                r"trying to load it from 'https://huggingface\.co/models'",
            ),
            (
                "does not appear to have a file named",
                r"does not appear to have a file named[\s\S]{0,200}https://huggingface\.co",
            ),
            ("on the hugging face hub", r"couldn't find [^\n]{1,200} on the Hugging Face Hub"),
            "incorrect path_or_model_id",
            ("token is required", r"Token is required \("),
            "distant resource does not",
            "(repository not found)",
            ("offlinemodeisenabled", r"OfflineModeIsEnabled"),
            ("outgoing traffic has been disabled", r"outgoing traffic has been disabled"),
            ("offline mode is enabled", r"offline mode is enabled"),
            ("invalid user token", r"Invalid user token|Invalid username or password"),
            ("cannot reach", r"Cannot reach https://huggingface\.co"),
            ("cas service error", r"CAS service error(?![^\n]*os error 28)"),
            ("file reconstruction error", r"File reconstruction error: (?![^\n]*os error 28)"),
            ("hfhubhttperror", r"\bHfHubHTTPError: (?:401|403|404|429|5\d\d)"),
            (
                "couldn't reach",
                r"Couldn't reach (?:'\S+' on the Hub|https://\S*huggingface|the Hugging Face Hub)",
            ),
            ("doesn't exist on the hub", r"doesn't exist on the Hub or cannot be accessed"),
            (
                "cannot find the requested files",
                r"cannot find the requested files in the local cache|find the requested files in the (?:disk|local) cache",
            ),
        ),
        encloses=("download-failed",),
    ),
    FailureClass(
        "device-map-conflict",
        "a model that device_map has spread, offloaded or quantised cannot be trained in this way",
        "with several processes, drop device_map; if quantised, use device_map={'': local_rank}; if offloaded, use a smaller model or a card with more memory",
        causes=(
            "can't train a model that has been loaded",
            "in any distributed mode",
            "on a different device than the one you're training on",
            ("with cpu or disk offload", r"precision\s+with CPU or disk offload"),
            ("offloaded to", r"weights offloaded to the \w+\. Please provide an `offload_folder`"),
            ("some modules are dispatched on the cpu", r"Some modules are dispatched on the CPU or the disk"),
            (
                "modules offloaded to cpu or disk",
                r"can't move a model that has some modules offloaded to cpu or disk",
            ),
            (
                "passing a `device_map`",
                r"not compatible with `low_cpu_mem_usage=True` or with passing a `device_map`",
            ),
            (
                "device_map",
                r"device_map[^\n]{0,60}(?:is not|not) (?:supported|compatible|allowed)[^\n]{0,60}(?:distributed|DDP|FSDP|DeepSpeed|ZeRO|training)",
            ),
        ),
    ),
    FailureClass(
        "mps-unsupported-op",
        "PyTorch does not support this operation or dtype on Apple GPUs (MPS)",
        "set PYTORCH_ENABLE_MPS_FALLBACK=1 to run the operation on the CPU; for a dtype, use float32",
        causes=(
            ("for the mps device", r"is not current(?:ly)?\s+(?:implemented|supported)\s+for the MPS"),
            ("implemented for the mps", r"not (?:currently )?implemented for the MPS"),
            ("on the mps backend", r"not (?:currently )?supported on the MPS backend"),
            ("is not supported on mps", r"\w+ is not supported on MPS"),
            ("mps tensor to float64", r"Cannot convert a MPS Tensor to float64"),
            ("mps backend", r"to the MPS backend but it does not have support for that dtype"),
            ("mps", r"\bMPS (?:backend |framework |device )?(?:doesn't|does not) support\b"),
            ("mps", r"\bdevice mps (?:is )?not supported|requires a GPU \(not 'mps'\)"),
            ("failed assertion", r"\bMPS(?:\w+/)*\w*[^\n]*\.mm:\d+: failed assertion"),
            ("llvm error", r"LLVM ERROR: Failed to infer result type"),
            ("backend", r"Could not run '\S+' with arguments from the '(?:Sparse)?MPS' backend"),
            ("at the mps device", r"not supported at the MPS device"),
            "mps backend is supported on macos",
            ("adaptive pool mps", r"Adaptive pool MPS: "),
        ),
    ),
    FailureClass(
        "missing-dependency",
        "a package or library is missing, or its version does not match the other packages",
        "add it to the job's requirements with a matching version; an undefined symbol means that a wheel was built for another torch",
        causes=(
            ("modulenotfounderror", r"ModuleNotFoundError:"),
            # On a CPU, bitsandbytes continues without kernels and prints at each import: "No module named
            # 'kernels'. Please make sure"
            ("no module named", r"(?:^|: )No module named (?!'kernels'\. Please)\S+"),
            ("importerror", r"^\S*ImportError: (?!sys\.meta_path)"),
            "cannot import name",
            ("undefined symbol", r"\.so\S*: undefined symbol"),
            (
                "cannot open shared object file",
                r"^(?!.*lib(?:nvidia-ml|cuda)\.so)\S*.*\.so\S*: cannot open shared object file",
            ),
            ("is required", r"\S+[<>=!]=?\S+ is required for a normal functioning of this module, but found"),
            (
                "library but it was not found",
                r"requires the \S+ library but it was not found in your environment",
            ),
            "packagenotfounderror",
            "distributionnotfound",
            ("not found (required by", r"version `\S+' not found \(required by"),
            ("torch not compiled with cuda enabled", r"Torch not compiled with CUDA enabled"),
            ("distributed package doesn't have", r"Distributed package doesn't have \w+ built in"),
            ("cuda_home environment variable is not set", r"CUDA_HOME environment variable is not set"),
            ("requires", r"\brequires `?pip install\b"),
            "operator torchvision::nms does not exist",
            "cuda setup failed despite",
            ("error building extension", r"Error building extension '"),
            ("importerror", r"^ImportError Traceback"),
            ("modulenotfounderror", r"^ModuleNotFoundError Traceback"),
            ("ninja is required", r"Ninja is required to load C\+\+ extensions"),
            ("failed to find c compiler", r"Failed to find C compiler"),
            ("compile = true needs", r"^compile = true needs "),
            ("variant of untagged enum", r"data did not match any variant of untagged enum"),
            ("a different version", r"numpy\.dtype size changed, may indicate binary incompatibility"),
            ("binary incompatibility", r"size changed, may indicate binary incompatibility"),
            ("numpy is not available", r"^RuntimeError: Numpy is not available"),
            ("descriptors cannot", r"^TypeError: Descriptors cannot (?:not )?be created directly"),
            ("does not recognize this architecture", r"Transformers does not recognize this architecture"),
            ("python.h:", r"fatal error: Python\.h: No such file"),
            ("cannot find -l", r"\bld: cannot find -l\w+"),
            ("cuda_home does not exist", r"CUDA_HOME does not exist, unable to compile"),
            ("unable to load any of", r"Unable to load any of \{lib\w+\.so"),
            (
                "no such file or directory:",
                r"No such file or directory: '(?:gcc|g\+\+|cc|c\+\+|nvcc|ninja|ptxas)'",
            ),
            (
                "not found",
                r"^(?:\S+: )*(?:line \d+: )?(?:gcc|g\+\+|cc|c\+\+|nvcc|ninja|make|cmake): (?:command )?not found",
            ),
            ("externally-managed-environment", r"^error: externally-managed-environment"),
            ("seems to be not installed", r"the package \S+ seems to be not installed"),
            ("py_ssize_t_clean", r"SystemError: PY_SSIZE_T_CLEAN macro must be defined"),
            ("passmanager::run failed", r"RuntimeError: PassManager::run failed"),
            ("could not find the bitsandbytes", r"Could not find the bitsandbytes \w+ binary"),
            ("cudamismatchexception", r"CUDAMismatchException"),
        ),
        ends=(
            (
                "command not found",
                r"^(?:\S+: )*(?:line \d+: )?(?!nvidia-smi|-)[\w.-]+: (?:command )?not found$",
            ),
        ),
    ),
    FailureClass(
        "too-many-open-files",
        "the process has as many files open as the host allows",
        "raise the limit   -- sh -c 'ulimit -n 65536; exec python …'     or fewer loader workers, or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
        causes=(
            ("too many open files", r"(?:OSError|Errno 24|\bEMFILE\b|RuntimeError)[^\n]*Too many open files"),
            ("items of ancdata", r"RuntimeError: received 0 items of ancdata"),
        ),
    ),
    FailureClass(
        "too-many-processes",
        "the user, or the container, may not start more processes or threads",
        "raise the limit   ulimit -u     or docker's --pids-limit; or fewer loader workers, and -e OMP_NUM_THREADS=1",
        causes=(
            (
                "pthread_create failed",
                r"pthread_create failed[^\n]*(?:Resource temporarily unavailable|RLIMIT_NPROC)",
            ),
            (
                "resource temporarily unavailable",
                r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
            ),
            ("can't start new thread", r"RuntimeError: can't start new thread"),
            ("fork:", r"fork: (?:retry: )?Resource temporarily unavailable"),
        ),
    ),
    FailureClass(
        "illegal-memory-access",
        "a kernel on the card read or wrote outside its memory",
        "-e CUDA_LAUNCH_BLOCKING=1 names the call; then another version of its extension, or none",
        ends=(
            (
                "an illegal memory access was encountered",
                r"CUDA (?:error|failure)[^\n]*an illegal memory access was encountered",
            ),
        ),
    ),
    FailureClass(
        "nccl-error",
        "the ranks lost contact or never connected; read 'Last error:' and the other ranks' logs, because a rank that died looks like this to the others",
        "try again; if it fails, set NCCL_DEBUG=INFO, then depending on its output choose the interface (NCCL_SOCKET_IFNAME), give each rank its own card, or raise ddp_timeout",
        echoes=(
            "watchdog caught collective operation timeout",
            ("nccl error", r"NCCL error in:|NCCL Error \d+:"),
            "ncclsystemerror",
            "ncclinternalerror",
            "ncclinvalidusage",
            "ncclunhandledcudaerror",
            "ncclremoteerror",
            "ncclinvalidargument",
            ("distbackenderror", r"\bDistBackendError\b"),
            "no socket interface found",
            "some nccl operations have failed or timed out",
            "to avoid data inconsistency, we are taking the entire process down",
            ("nccl communicator", r"NCCL communicator (?:was|is) aborted|setting up NCCL communicator"),
            ("watchdog", r"(?:NCCL|process group) watchdog (?:thread terminated|hang|got stuck)"),
            (
                "timed out",
                r"Timed out(?: after \d+ seconds)? waiting for clients|client socket has timed out after",
            ),
            (
                "nccl warn",
                r"\bNCCL WARN\b[\s\S]{0,80}?(?:fail|error|timeout|timed out|closed|mismatch|No route|refused|unreachable)",
            ),
            ("processgroupnccl", r"\[E\d*\s?[^\]]*ProcessGroupNCCL\.cpp"),
            (
                "gloo",
                r"gloo/transport/\S+[\s\S]{0,60}(?:Connection (?:closed|reset|refused)|Timed out|timeout)|Gloo connectFullMesh failed",
            ),
            (
                "timed out",
                r"(?:store based barrier|TCPStore|rendezvous)[\s\S]{0,200}timed out|Timed out initializing process group",
            ),
            ("original timeout was", r"timed out\. Original timeout was \d+ ms"),
            ("rendezvous", r"\bRendezvous(?:Connection|Timeout|Closed)Error\b"),
            ("timeout at collective", r"Timeout at (?:collective|NCCL work)"),
            ("collective", r"Detected mismatch between collectives on ranks"),
            ("connection closed by", r"RuntimeError: [^\n]*connection closed by (?:remote )?peer"),
            ("c10d", r"\[c10d\][^\n]*(?:recvValue|sendBytes|recvBytes)[^\n]*failed"),
            ("diststoreerror", r"\bDistStoreError\b"),
        ),
    ),
    FailureClass(
        "host-lost",
        "a node of the run was lost: its machine died, or Slurm could not reach it any more",
        "the run continues on another node; if the same node is lost again, exclude it with sbatch's --exclude",
        causes=(
            ("node failure on", r"^srun: error: Node failure on \S+"),
            ("due to node failure", r"\bDUE TO NODE FAILURE\b"),
        ),
    ),
    FailureClass(
        "preempted",
        "the process was asked to end by its scheduler, a spot host that is being reclaimed, a shell that closed, or a person",
        "resume from the last checkpoint, unless a person ended it; request more time, and detach from the shell (launch does)",
        causes=(),
        ends=(
            ("cancelled at", r"CANCELLED AT\b"),
            ("due to preemption", r"DUE TO PREEMPTION"),
            ("due to time limit", r"DUE TO TIME LIMIT"),
            (
                "time limit",
                r"(?:job|step)[^\n]{0,60}(?:exceeded|reached|killed|hit)[^\n]{0,20}(?:time|wall[- ]?(?:time|clock))\s?limit",
            ),
            ("term_", r"\bTERM_(?:RUNLIMIT|PREEMPT|OWNER|ADMIN)\b"),
            ("execution duration", r"exceeded the max(?:imum)?(?: allowed)? execution duration"),
            ("walltime", r"walltime \d+ exceeded limit|exceeded (?:its )?(?:hard |soft )?wall\s?time"),
            ("got signal", r"SignalException: Process(?: \d+)? got signal: (?:1|15)\b"),
            (
                "death signal",
                r"(?:Received (?:1|15|Signals\.SIG(?:HUP|TERM)) death signal|Received Signals\.SIG(?:HUP|TERM) death signal|SIG(?:HUP|TERM) death signal)",
            ),
            (
                "preempt",
                r"\b(?:was|been|being|is|got|job|instance|node|pod) preempted\b|\bPreemption (?:notice|signal) received|preemptible instance[^\n]*(?:stopp|terminat)",
            ),
            (
                "spot",
                r"\bspot (?:instance|interruption|termination|node)\b[^\n]*(?:interrupt|terminat|reclaim|notice)",
            ),
            (
                "sigterm",
                r"\b(?:received|caught|got) (?:a )?(?:signal )?(?:\(?15\)?\W*)?\(?SIGTERM\b(?!.*closing)",
            ),
            ("sigterm received", r"\bSIGTERM received\b"),
            ("sigterm", r"Signal 15 \(SIGTERM\) received by PID"),
            ("exit code", r"exit(?:ed with)? (?:code|status)\W{0,3}143\b"),
            ("code 143", r"\bcode 143\b"),
            ("terminated", r"^Terminated\.?$|: line \d+:\s+\d+ Terminated\b"),
            ("signal 15", r"(?:killed|terminated|received|caught)[^\n]{0,30}signal:? \(?15\b"),
            ("hangup", r"^Hangup\b|: line \d+:\s+\d+ Hangup\b"),
        ),
    ),
    FailureClass(
        "ssh-connection-lost",
        "the connection to the host was lost, or it does not answer yet; processes there may still be running",
        "reconnect and check before starting anything again: launch attach RUN",
        ends=(
            "client_loop: send disconnect",
            "kex_exchange_identification",
            "ssh_exchange_identification",
            "packet_write_wait",
            "ssh_dispatch_run_fatal",
            "mux_client_request_session",
            "error reading ssh protocol banner",
            ("write failed", r"^Write failed: Broken pipe"),
            ("read from remote host", r"^Read from remote host \S+"),
            ("timeout, server", r"^Timeout, server \S+ not responding"),
            ("ssh: connect to host", r"ssh: connect to host \S+ port \d+: "),
            ("ssh:", r"ssh: Could not resolve hostname"),
            ("connection", r"^Connection (?:closed|reset|timed out)(?: by| during)? \S*[^\n]*port \d+"),
            ("closed by remote host", r"Connection (?:to \S+ )?closed by remote host"),
            ("connection lost", r"^(?:ssh|asyncssh|paramiko)\S*[^\n]*connection lost"),
            (
                "connection",
                r"paramiko[^\n]*(?:connection (?:closed|lost|reset|dropped)|timed out|SSH session not active)",
            ),
            ("ssh session not active", r"SSH session not active"),
            ("unable to connect to port", r"NoValidConnectionsError|Unable to connect to port 22"),
            (
                "rsync",
                r"rsync: [^\n]*(?:connection unexpectedly closed|connection (?:reset|refused|timed out)|broken pipe)",
            ),
            ("rsync error", r"rsync error: [^\n]*\(code (?:12|30|35|255)\)"),
            ("lost connection", r"^lost connection$"),
            ("socket is closed", r"paramiko[\s\S]{0,300}Socket is closed"),
            ("server connection dropped", r"Server connection dropped"),
            ("connection timed out during banner exchange", r"banner exchange"),
        ),
    ),
    FailureClass(
        "hang",
        "nothing has happened for many times the usual step time, or for an hour if no step time is known",
        "compare the stacks of all processes (py-spy dump) to find the rank that is somewhere else than the others",
        ends=(
            (
                "to finish building extension",
                r"^(?:Waiting for|.*waiting on) [^\n]*to finish building extension",
            ),
        ),
    ),
    FailureClass(
        "needs-terminal",
        "the script asks for input, and a launched script has no terminal",
        "pass the answer as an argument, a variable or a secret (--secret NAME), or let a shell give it: sh -c 'yes | python train.py'",
        causes=(
            ("eoferror: eof when reading a line", r"EOFError: EOF when reading a line"),
            (
                "inappropriate ioctl for device",
                r"(?:termios\.error|OSError)\b[^\n]*Inappropriate ioctl for device",
            ),
            ("api_key not configured", r"api_key not configured \(no-tty\)"),
        ),
    ),
    FailureClass(
        "download-failed",
        "a file could not be downloaded: the host has no network, or the server refused",
        "download it on this computer, into the folder that is sent, and read it from there; or name a proxy   -e HTTPS_PROXY=…",
        causes=(
            ("urlopen error", r"URLError: <urlopen error"),
            ("url fetch failure on", r"URL fetch failure on \S+: "),
            ("http error", r"HTTPError: HTTP Error [345]\d\d\b"),
            ("error downloading", r"RuntimeError: Error downloading "),
            (
                "max retries exceeded with url",
                r"^\S*(?:Error|Timeout): \S*ConnectionPool\(host=[^\n]*Max retries exceeded with url",
            ),
            ("nameresolutionerror", r"^\S*NameResolutionError: "),
            (
                "please use the nltk downloader",
                r"Resource \S+ not found\.[\s\S]{0,60}Please use the NLTK Downloader",
            ),
            ("fileurlretrievalerror", r"\bFileURLRetrievalError: "),
            (
                "error:",
                r"^(?:httpx|httpcore|requests|urllib3|aiohttp|botocore|boto3|google|azure)[\w.]*\.(?!InvalidURL|InvalidSchema|MissingSchema)\w*(?:Connect|Connection|Timeout|Network|Proxy|Protocol|Endpoint)\w*(?:Error|Exception|Timeout)?: ",
            ),
            ("timeout:", r"^(?:httpx|httpcore|requests|urllib3|aiohttp)[\w.]*\.\w*Timeout: "),
            ("gaierror:", r"^socket\.gaierror: \[Errno -\d+\]"),
            ("temporary failure in name resolution", r"Temporary failure in name resolution$"),
            ("name or service not known", r"\[Errno -2\] Name or service not known$"),
            ("connectionreseterror", r"^ConnectionResetError: \[Errno 104\]"),
            ("connectionrefusederror", r"^ConnectionRefusedError: \[Errno 111\]"),
        ),
    ),
    FailureClass(
        "upload-failed",
        "a file could not be uploaded: the host has no network, or the server did not answer",
        "upload the downloaded files from this computer; or name a proxy (-e HTTPS_PROXY=…), and run only the upload   launch resume RUN -- COMMAND",
    ),
    FailureClass(
        "user-code-error",
        "the script, its arguments or its data are wrong; it would fail the same way again",
        "fix the script at the last line of the traceback that is in your own code",
        causes=(
            ("unrecognized arguments", r"error: unrecognized arguments:"),
            ("the following arguments are required", r"error: the following arguments are required:"),
            ("can't open file", r"can't open file '?[^\n]*\[Errno 2\]"),
            ("error: argument", r"error: argument [^\n]+: "),
            ("unsupported global", r"WeightsUnpickler error: Unsupported global"),
            ("error:", r"^Error: (?:No such option|Invalid value|Missing option|Missing argument)\b"),
            ("config", r"^✘ Config \w*\s?error\b"),  # spaCy
            ("the job refuses: ", r"^the job refuses: "),  # launcher's own jobs
            ("read-only file system", r"^OSError: \[Errno 30\] Read-only file system"),
            ("command '['git'", r"CalledProcessError: Command '\[?'?git\b"),
            ("not a git repository", r"^fatal: not a git repository"),
            ("exec format error", r"^exec \S+: exec format error|^OSError: \[Errno 8\] Exec format error"),
        ),
    ),
    FailureClass(
        "unknown",
        "the log shows that something failed, but not what",
        "read the lines above it; if there are several ranks, read the logs of all",
        echoes=(
            "traceback (most recent call last)",
            "childfailederror",
            "calledprocesserror",
            ("exitcode", r"exitcode\s*:\s*-?[1-9]"),
            ("exit code", r"exit(?:ed with)? (?:code|status)\W{0,3}-?[1-9]"),
            ("exits with return code", r"exits with return code = -?[1-9]"),
            ("core dumped", r"\(core dumped\)"),
            "segmentation fault",
            ("segfault at", r"\]: segfault at [0-9a-f]+ ip "),
            "illegal memory access",
            "unspecified launch failure",
            ("cuda error", r"\bCUDA error\b"),
            ("terminate called", r"terminate called (?:after throwing|without)"),
            ("exited with", r"[Ee]xited with (?:exit )?(?:code|status) -?[1-9]"),
            ("failed", r"^\S+\.py FAILED$|\bFAILED$"),
            ("error:", r"^(?:\S+: )?(?:fatal |internal )?error:"),
            ("fatal", r"^fatal: |\bFATAL\b"),
            ("error", r"^(?:E\d{4} |ERROR\b|\[ERROR\]|Error\b)"),
            (
                "failed",
                r"^\W{0,4}(?:\w+ )?(?:training|finetuning|fine-tuning|run|job|experiment) (?:has |run |job )?failed\b",
            ),
            ("aborted", r"^\W{0,4}(?:\w+ )?(?:training|run|job|experiment) (?:was |has been )?aborted\b"),
            ("error during", r"^\W{0,4}error during (?:training|fine-?tuning)\b"),
            ("aborted", r"^Aborted\b|signal SIGABRT"),
            ("errors:", r"^Errors:"),
            ("error", r"^.{0,40}(?-i:\b(?:ERROR|CRITICAL)\b)(?=[\]\s|:-])"),
            ("error:", r"^(?:[\w.]+\.)?\w+Error: "),
            "error response from daemon",
            ("command not found", r": line \d+: -[\w-]+: command not found"),
            "starting container process caused",
            ("terminated with code", r"\bterminated with code -?[1-9]"),
            ("cannot connect to the docker daemon", r"Cannot connect to the Docker daemon"),
            ("exception", r"^(?:[\w.]+\.)?\w*(?:Error|Exception)\b"),
            ("unhandled", r"Unhandled exception"),
            ("keyboardinterrupt", r"^KeyboardInterrupt"),
            "hydra_full_error=1 for a complete stack trace",
        ),
    ),
    FailureClass(
        "none",
        "no error that ended the command was found in this log",
        "nothing to do; if the command failed, its exit status or signal says more than this log",
    ),
)

BY_NAME = {failure.name: failure for failure in FAILURES}

# Lines that are never a sign of a failure, even if they contain its words.
HARMLESS = (
    r"fall back to run on the CPU",
    r"Exception ignored in|sys\.meta_path is None",
    r"client socket has failed to connect to",
    r"closing signal SIG",
    r"forcefully exiting|via Signals\.SIGKILL",
    r"destroy_process_group\(\)|process group has NOT been destroyed",
    r"Could not load dynamic library|cudart_stub|dso_loader",
    r"dlerror=|NET/Plugin|Unable to register cu\w+ factory|computation placer already registered",
    r"pip's dependency resolver|fatal: not a git repository|Error in cpuinfo",
    r"_OOM_|oom_score|\boom(?:_kill)? 0\b",
    r"Ignoring|ignored\.$|Retrying|retrying|will retry|[Ff]alling back|trying another port",
    r"^.{0,20}\b(?:[Ii]f you|[Tt]o (?:avoid|prevent)|[Ii]n case of)\b.{0,60}(?:out of memory|OOM|[Ee]rrors?)\b",
    r"[Rr]educing (?:the )?(?:micro-?)?batch|[Tt]rying (?:a smaller |with )?batch",
    r"\b(?:0|[Nn]o|[Zz]ero) (?:(?:of|out of) \d+ )?(?:\w+ ){0,2}fail(?:ed|ures?)?\b|\b[Ff]ailed: 0\b(?![.\d])",
)
# Warnings: they can be hints but not causes. NCCL's WARN is an error; ssh frames its warnings with @.
WARNING = (
    r"^(?!@).{0,60}(?<!NCCL )\bWARN(?:ING)?\b|^\S+ ?\S*:\d+: \w*Warning\b|^\w*Warning: |\bwarnings?\.warn\("
    r"|^\[?W\d{3,}|^.{0,30}\[W\d* |: W (?:tensorflow|external)|failed call to cuInit"
    r"|^(?!.*\w(?:Error|Exception): ).{0,60}(?:\b(?:INFO|DEBUG)\b|: I (?:tensorflow|external))"
)


def patterns(signs: Signs) -> Iterator[Tuple[str, str]]:
    """Yield the phrase and the regular expression of each sign; a bare phrase is its own expression."""
    for sign in signs:
        phrase, pattern = sign if isinstance(sign, tuple) else (sign, re.escape(sign).replace("\\ ", " "))
        yield phrase, pattern.replace(" ", r"\s+")
