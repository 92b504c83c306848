"""The commonest errors of the libraries of a fine-tune, each with its cause and the call to write.

A pattern is searched in the line that proves a failure and in the few lines after it, because some messages begin with an
empty line. Most of these words only explain the class of a failure.
Where the traceback shows that a library, or another program, is at fault, a rule names the class too.

Sources: the messages in torch 2.x, transformers 4 and 5, peft, TRL, tokenizers, datasets, accelerate, bitsandbytes,
safetensors, DeepSpeed, triton, flash-attn, numpy, protobuf and wandb.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Tuple

from .cause_text import CauseText
from .failures import BY_NAME


class _Rule(NamedTuple):
    pattern: "re.Pattern[str]"
    cure: CauseText
    context: "Optional[re.Pattern[str]]" = None
    """A pattern that the log must have too."""
    failure: Optional[str] = None
    """The class of the failure, where the line alone suggests another one."""


def _rule(
    pattern: str, why: str, mend: str, context: Optional[str] = None, failure: Optional[str] = None
) -> _Rule:
    also = None if context is None else re.compile(context)
    return _Rule(re.compile(pattern), CauseText(why, mend), also, failure)


_ADAPTERS = (
    _rule(
        r"does not require grad and does not have a grad_fn",
        "gradient checkpointing gets inputs without gradients, because the embeddings under the adapter are frozen",
        "model.enable_input_require_grads() before the training, or gradient_checkpointing_kwargs={'use_reentrant': False}",
        context=r"None of the inputs have requires_grad|gradient.checkpointing",
    ),
    _rule(
        r"does not require grad and does not have a grad_fn",
        "the loss depends on no trainable weight",
        "set requires_grad, or add an adapter, before the optimizer is made; no torch.no_grad() around the forward pass; "
        "with gradient checkpointing, model.enable_input_require_grads() or use_reentrant=False",
    ),
    _rule(
        r"Target modules .{0,200} not found in the base model|specify `?target_modules`? in `?peft_config",
        "LoRA's target_modules name no module of this architecture",
        'target_modules="all-linear", or names that print(model) shows',
    ),
    _rule(
        r"`?\.to`? is not supported for `?(?:4-bit|8-bit)|`?\.to`? is not supported for .{0,40}bitsandbytes",
        "a quantised model cannot be moved or cast: it is on its device already",
        "remove the call of .to() or .cuda() on it; choose its device by device_map={'': 0} when it is loaded",
    ),
    _rule(
        r"cannot perform fine-tuning on purely quantized models",
        "the weights of a quantised model cannot be trained",
        "train an adapter on it: model = get_peft_model(model, LoraConfig(...)) before the trainer is made",
    ),
    _rule(
        r"can't train a model that has been loaded (?:in|with) (?:8|4)-?bit.{0,60}different device",
        "each process must have the quantised model on its own card",
        "device_map={'': torch.cuda.current_device()} in from_pretrained",
    ),
    _rule(
        r"can't train a model that has been loaded (?:with|in) .{0,20}device_map.{0,30}in any distributed mode",
        "device_map splits the model over the cards, which several processes cannot share",
        "load it without device_map, or start one process: python instead of torchrun",
    ),
    _rule(
        r"Can't find 'adapter_config\.json'",
        "the folder holds no adapter",
        "name the folder that save_pretrained of the adapter wrote, with adapter_config.json in it",
    ),
)

_TEXT = (
    _rule(
        r"chat_template is not set|chat template functions because",
        "this tokenizer has no chat template: base models have none",
        "train an instruct model, or set tokenizer.chat_template",
    ),
    _rule(
        r"does not have a padding token|no padding token is defined",
        "the tokenizer has no padding token, so rows of different lengths cannot be one batch",
        "tokenizer.pad_token = tokenizer.eos_token, and model.config.pad_token_id = tokenizer.pad_token_id",
    ),
    _rule(
        r"out of range integral type conversion attempted|can't convert negative int to unsigned|number too small to fit in target type",
        "the tokenizer is to decode -100, the label of positions that do not count",
        "replace -100 first: ids = np.where(ids != -100, ids, tokenizer.pad_token_id)",
    ),
    _rule(
        r"Unable to create tensor, you should probably activate truncation|"
        r"expected sequence of length \d+ at dim 1|too many dimensions 'str'",
        "rows of different lengths, or a column of text, cannot become one tensor: the collator does not pad them",
        "use a collator that pads labels too, such as DataCollatorForSeq2Seq, and remove columns of text",
    ),
    _rule(
        r"stack expects each tensor to be equal size",
        "items of different sizes cannot become one batch: the collator does not pad them",
        "a collate_fn that pads, for example with torch.nn.utils.rnn.pad_sequence; or cut or resize each item to one size",
    ),
    _rule(
        r"index out of range in self",
        "a token id, or a position, lies beyond its embedding: tokens were added, or the row is longer than the model allows",
        "model.resize_token_embeddings(len(tokenizer)) after tokens were added; else cut rows to the model's length: truncation=True",
    ),
    _rule(
        r"Cannot instantiate this tokenizer from a slow version|Couldn't instantiate the backend tokenizer|"
        r"requires the (?:SentencePiece|protobuf|tiktoken) library",
        "the tokenizer needs a package that is not installed",
        "launch … --with sentencepiece --with protobuf --with tiktoken …",
    ),
    _rule(
        r"Tokenizer class \w+ does not exist or is not currently imported|does not recognize this architecture|"
        r"KeyError: '(?:qwen|llama|gemma|mistral|phi|deepseek|olmo|granite|glm|smollm)\w*'",
        "the installed transformers is older than this model",
        "a newer version   launch … --with 'transformers>=…'     the model's page names the version",
    ),
    _rule(
        r"did not return a loss from the inputs",
        "the model got no labels: its dataset has no column that its forward takes as labels",
        "name the column `labels`, or set label_names; remove_unused_columns=False keeps the others",
    ),
    _rule(
        r"No columns in the dataset match the model's forward method signature",
        "Trainer removes the columns that the model's forward does not take, and none is left",
        "tokenize the dataset first, or remove_unused_columns=False with a collator of your own",
    ),
    _rule(
        r"num_samples should be a positive integer value, but got num_samples=0|Dataset is empty|No examples? (?:found|left)",
        "the dataset has no rows: the file is empty, or a filter removed all of them",
        "print len(dataset) after each step that loads, filters or splits it",
    ),
    _rule(
        r"Cannot find valid samples",
        "the preparation dropped every row: the names of columns, roles or tags in the data are not those that it looks for",
        "compare one row with the format that the program documents",
    ),
    _rule(
        r"(?:[Aa]ll labels in your dataset are|masked every label to) -100",
        "no label is left to learn: max_length is shorter than the prompts, or the mark of the response was not found",
        "print the labels of one row; a larger max_length, or the mark as the chat template writes it",
        failure="not-learning",
    ),
    _rule(
        r"KeyError: [\"'](?:eval_\w+|The `?metric_for_best_model)",
        "the evaluation returns no metric of that name",
        "set metric_for_best_model to one that the line lists, or return it from compute_metrics; with PEFT and no eval_loss, label_names=['labels']",
        context=r"metric_for_best_model`? training argument is set to",
    ),
    _rule(
        r"generation_batch_size \(\d+\) must be divisible by num_generations",
        "each prompt's generations must fill whole batches",
        "choose num_generations as a divisor of generation_batch_size",
    ),
    _rule(
        r"Expected input batch_size \(\d+\) to match target batch_size",
        "logits and labels have different numbers of positions",
        "pad and cut the labels like the inputs, and shift them only once",
    ),
    _rule(
        r"Could not find response key",
        "the collator found the mark of the response in no row, so it masks all labels",
        "make response_template equal to the text of the rows, by its token ids",
    ),
    _rule(
        r"global (?:train|eval) batch size \(.{0,60}evenly divisible by the number of generations",
        "each prompt's generations must fill whole batches",
        "make per_device_train_batch_size times the processes a multiple of num_generations",
    ),
)

_DATA = (
    _rule(
        r"Loading a dataset cached in a LocalFileSystem is not supported",
        "datasets and fsspec do not fit each other",
        "a newer one   launch … --with 'datasets>=2.14.6'",
    ),
    _rule(
        r"Dataset scripts are no longer supported",
        "datasets 4 does not run loading scripts",
        "load the files themselves (parquet, json), or   launch … --with 'datasets<4'",
    ),
    _rule(
        r"contains custom code which must be executed|requires you to execute the (?:configuration|dataset script)|"
        r"pass the argument `?trust_remote_code=True",
        "the model or dataset contains code, which runs only if you agree",
        "read that code, then   trust_remote_code=True",
    ),
    _rule(
        r"JSON parse error: Column\(.{0,120}\) changed from",
        "a column has values of different types in different rows of the JSON file",
        "make them of one type, for example text or a list everywhere",
    ),
    _rule(
        r"JSON parse error|Failed to (?:parse|read) (?:string|file).{0,120}\.jsonl?|JSONDecodeError",
        "a line of a JSON file is not valid",
        "find it   python -m json.tool --json-lines FILE",
    ),
    _rule(
        r"Column(?: name)?s? .{0,60}not in the dataset",
        "the dataset has no such column",
        "print(dataset.column_names), and name the columns of this dataset",
    ),
    _rule(
        r"Couldn't find a module script at",
        "evaluate fetches the code of a metric from Hugging Face, and there is no copy here",
        "compute it without evaluate, by scikit-learn for example; or keep its script beside yours, as NAME/NAME.py",
    ),
    _rule(
        r"KeyError: '[^']+'",
        "the rows of the dataset have no column of this name",
        "rename a column of the data, or name the right one in the program's settings",
        context=r"datasets[/\\]formatting[/\\]formatting\.py\", line \d+, in __getitem__\n(?:[^\n]*\n){1,3}?KeyError: ",
    ),
    _rule(
        r"An error occurred while generating the dataset|DatasetGenerationError",
        "a file of the dataset could not be read: the exception above this one says where",
        "check that all files have the same columns and types",
    ),
)

_TRAINING = (
    _rule(
        r"Cannot re-initialize CUDA in forked subprocess",
        "the loader's workers use CUDA, and a forked process cannot",
        "move tensors to the card in the training loop, not in the dataset or collator; or "
        "torch.multiprocessing.set_start_method('spawn'), or no loader workers",
    ),
    _rule(
        r"Expected to have finished reduction in the prior iteration",
        "a weight took no part in the loss, so the ranks wait for its gradient",
        "ddp_find_unused_parameters=True (find_unused_parameters=True in DistributedDataParallel), or freeze that weight",
    ),
    _rule(
        r"Expected to mark a variable ready only once",
        "reentrant gradient checkpointing computes a weight's gradient twice under DDP",
        "gradient_checkpointing_kwargs={'use_reentrant': False}",
    ),
    _rule(
        r"correct the following DeepSpeed config values that mismatch",
        "the DeepSpeed config names numbers that differ from TrainingArguments",
        'write "auto" for them in the DeepSpeed config',
    ),
    _rule(
        r"'weight' must be 2-D|size mismatch for .{0,120}torch\.Size\(\[0\]\)",
        "ZeRO-3 keeps only a part of each weight, and this one was used outside of its gathering",
        "with deepspeed.zero.GatheredParameters(parameter): around the code that reads it, or ZeRO-2",
    ),
    _rule(
        r"load_best_model_at_end requires the (?:save|eval)",
        "the best model can only be found where each evaluation has a checkpoint",
        "save_strategy equal to eval_strategy, and save_steps a multiple of eval_steps",
    ),
    _rule(
        r"requires an eval_dataset|but no `?eval_dataset`? (?:was )?(?:passed|provided)",
        "an evaluation was asked for without data",
        "pass eval_dataset=…, or eval_strategy='no'",
    ),
    _rule(
        r"Some tensors share memory|shared tensors.{0,80}mismatching|tensors? .{0,80}shared .{0,40}safetensors",
        "tied weights cannot be saved twice by safetensors",
        "model.save_pretrained(…), or safetensors.torch.save_model(model, …), which keeps one copy; or safe_serialization=False",
    ),
    _rule(
        r"parameter group that doesn't match the size of optimizer's group|different number of parameter groups",
        "the optimizer of the checkpoint had other trainable parameters than this one",
        "resume with the same trainable parameters and target_modules, or without the optimizer's state",
    ),
    _rule(
        r"Error\(s\) in loading state_dict",
        "the weights in the file have other names or sizes than those of the model",
        "sizes: the same vocabulary (resize_token_embeddings) and the same LoRA rank; names: remove a prefix such as `module.` or `_orig_mod.`",
    ),
    _rule(
        r"modified by an inplace operation",
        "a value that the backward pass needs was changed in place after it was used",
        "find it   torch.autograd.set_detect_anomaly(True)     then write x = x + y instead of x += y",
    ),
    _rule(
        r"backward through the graph a second time",
        "the graph of this loss was freed by its first backward pass",
        "compute the loss again in each step; detach the state that one step passes to the next: state.detach()",
    ),
    _rule(
        r"grad can be implicitly created only for scalar outputs",
        "the loss is not one number",
        "loss.mean().backward()",
    ),
    _rule(
        r"Can't call numpy\(\) on Tensor that requires grad|can't convert \w+:\d device type tensor to numpy",
        "a tensor of the training is turned into a numpy array",
        "tensor.detach().cpu().numpy()     for bfloat16   tensor.detach().float().cpu().numpy()",
    ),
    _rule(
        r"Got unsupported ScalarType BFloat16",
        "numpy has no bfloat16",
        "tensor.float() before .numpy()",
    ),
    _rule(
        r"Expected all tensors to be on the same device",
        "two tensors of one operation are on different devices",
        "batch = {name: value.to(model.device) for name, value in batch.items()}, and device= for tensors that the script makes",
    ),
    _rule(
        r"Weights only load failed|WeightsUnpickler error",
        "transformers reads the random state of a checkpoint, which this torch does not trust",
        "a newer transformers   launch … --with 'transformers>=4.48'     or   -e TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1",
        context=r"rng_state",
    ),
    _rule(
        r"Weights only load failed|WeightsUnpickler error|weights_only=True",
        "torch.load reads weights only, and the file holds other objects",
        "if you made the file yourself   torch.load(path, weights_only=False)     or save only state_dict()",
    ),
    _rule(
        r"vulnerability issue in `?torch\.load|upgrade torch to at least v?2\.6",
        "transformers reads .bin files only with torch 2.6 or newer",
        "a model with .safetensors files, or   launch … --with 'torch>=2.6'",
    ),
    _rule(
        r"Attempting to deserialize object on a CUDA device",
        "the file was saved on a card, and there is none here",
        "torch.load(path, map_location='cpu')",
    ),
    _rule(
        r"daemonic processes are not allowed to have children",
        "a loader's worker starts more processes",
        "num_workers=0, or no multiprocessing in the dataset",
    ),
)

_MEMORY = (
    _rule(
        r"No available memory for the cache blocks|gpu_memory_utilization",
        "vLLM finds no room for its cache beside the model on this card",
        "vllm_gpu_memory_utilization: higher if vLLM has the card alone, lower if the training shares it; or a smaller max_model_len",
    ),
    _rule(
        r"can't allocate memory",
        "this machine's memory ran out in an evaluation, which keeps the logits of all its rows",
        "preprocess_logits_for_metrics that keeps the argmax, prediction_loss_only=True, or fewer rows to evaluate",
        context=r"(?:evaluation_loop|nested_concat|torch_pad_and_concatenate)[\s\S]{0,1500}can't allocate memory",
    ),
    _rule(
        r"out of memory",
        "memory ran out in an evaluation, which keeps the logits of all its batches on the card: a smaller training batch cannot help",
        "eval_accumulation_steps=1, prediction_loss_only=True, preprocess_logits_for_metrics, or a smaller per_device_eval_batch_size",
        context=r"evaluation_loop[\s\S]{0,600}(?:out of memory|OutOfMemoryError)",
    ),
    _rule(
        r"CUDNN_STATUS_NOT_INITIALIZED",
        "cuDNN could not start: the card's memory is nearly full, or another cuDNN stands on LD_LIBRARY_PATH",
        "less memory at once (a smaller micro-batch); else unset LD_LIBRARY_PATH, so that torch's own cuDNN is loaded",
    ),
)

_INPUT = re.compile(
    r"mat1 and mat2 must have the same dtype, but got Float and (?:BFloat16|Half)"
    r"|expected mat1 and mat2 to have the same dtype, but got: float != c10::(?:BFloat16|Half)"
    r"|Input type \((?:float|torch\.(?:cuda\.)?FloatTensor)\) and \w+ type \((?:c10::)?(?:torch\.(?:cuda\.)?)?(?:BFloat16|Half)"
)
_DTYPES = (
    _Rule(
        _INPUT,
        CauseText(
            "the input of a layer is float32 and its weights are half precision, and no autocast casts the input",
            "cast the input: x.to(model.dtype), or x.to(next(model.parameters()).dtype); or call the model under torch.autocast",
        ),
    ),
)

_INSTALLATION = (
    _rule(
        r"operator torchvision::nms does not exist",
        "the installed torchvision was built for another torch",
        "a torchvision that fits   launch … --with torch --with torchvision …     or an environment without it",
    ),
    _rule(
        r"with uniform dtype",
        "FSDP needs one dtype for all weights that it flattens together",
        "the adapter in the base's dtype, or bnb_4bit_quant_storage equal to it in a 4-bit base",
    ),
    _rule(
        r"PY_SSIZE_T_CLEAN|PassManager::run failed|module 'triton\S*' has no attribute",
        "triton does not fit the installed torch or Python",
        "the triton that torch asks for   pip install -U torch     or without compiling: -e TORCHDYNAMO_DISABLE=1",
        failure="missing-dependency",
    ),
    _rule(
        r"Could not find the bitsandbytes \w+ binary|CUDA is required but not available for bitsandbytes",
        "this bitsandbytes has no build for the CUDA version of torch",
        "a newer one   launch … --with 'bitsandbytes>=0.45'     or   -e BNB_CUDA_VERSION=…  of a build that it has",
    ),
    _rule(
        r"CUDAMismatchException",
        "the CUDA toolkit of the host is of another version than torch's",
        "a toolkit of torch's version; for a small difference   -e DS_SKIP_CUDA_CHECK=1",
    ),
    _rule(
        r"has no attribute '(?:train|eval)'|module '[\w.]+' has no attribute|\w+\.\w+\(\) got an unexpected keyword argument",
        "a library calls another one that is older or newer than it expects",
        "versions that fit each other   launch … --with 'transformers' --with 'accelerate' --with 'trl' --with 'peft'",
        context=r"(?:site|dist)-packages[/\\](?:transformers|accelerate|trl|peft|unsloth)[/\\][^\n]*\n(?:[^\n]*\n){1,3}?(?:AttributeError|TypeError): ",
        failure="missing-dependency",
    ),
    _rule(
        r"FlashAttention only supports? fp16 and bf16",
        "FlashAttention got float32 tensors: it computes in half precision only",
        "load the model in bf16 or fp16, or train under autocast; or attn_implementation='sdpa'",
    ),
    _rule(
        r"FlashAttention only supports? Ampere|flash_attn seems to be not installed|package flash_attn",
        "FlashAttention 2 is not installed, or the card is older than Ampere",
        "attn_implementation='sdpa', which needs no package and runs on every card",
    ),
    _rule(
        r"fp8e4nv data type is not supported",
        "the card has no fp8: that needs compute capability 8.9",
        "another dtype than fp8 on this card, or a card such as an L40S, RTX 4090 or H100",
    ),
    _rule(
        r"out of resource: shared memory",
        "a Triton kernel needs more shared memory than the card has",
        "fewer num_stages or smaller blocks in the kernel; or without that kernel, such as attn_implementation='sdpa'",
    ),
    _rule(
        r"named symbol not found",
        "bitsandbytes' kernels were not built for this card",
        "a newer one   launch … --with 'bitsandbytes>=0.45'     or without quantization on this card",
    ),
    _rule(
        r"Python\.h: No such file",
        "Python's headers are missing on the host, and Triton compiles with them",
        "on the host   sudo apt install python3-dev     or without compiling: TORCHDYNAMO_DISABLE=1",
    ),
    _rule(
        r"cannot find -lcuda|ld returned 1 exit status",
        "the linker did not find a library, such as libcuda.so of the driver (-lcuda)",
        "on the host   export LIBRARY_PATH to the folder of libcuda.so, or LDFLAGS=-L/usr/local/cuda/lib64/stubs",
    ),
    _rule(
        r"CUDA_HOME does not exist|CUDA_HOME environment variable is not set|nvcc.{0,20}not found|No such file or directory: 'nvcc'|MissingCUDAException",
        "an extension is compiled for CUDA, and the host has no CUDA toolkit (nvcc)",
        "an image with the toolkit, such as one whose tag ends with -devel; or a wheel that is built already; for DeepSpeed DS_BUILD_OPS=0",
    ),
    _rule(
        r"[Nn]inja is required|(?:gcc|g\+\+|cc)['\"]?: (?:command )?not found|No such file or directory: '(?:gcc|g\+\+|cc|c\+\+|ninja)'|Failed to find C compiler|No working C\+\+ compiler found",
        "a compiler, or ninja, is missing on the host",
        "on the host   sudo apt install build-essential     ninja   launch … --with ninja",
        failure="missing-dependency",
    ),
    _rule(
        r"GLIBCXX_\S+' not found",
        "an older libstdc++ of the system is loaded instead of the environment's",
        "export LD_LIBRARY_PATH=$CONDA_PREFIX/lib:$LD_LIBRARY_PATH, or   conda install -c conda-forge libstdcxx-ng",
    ),
    _rule(
        r"libGL\.so\.1",
        "OpenCV needs libGL, which a server lacks",
        "opencv-python-headless instead of opencv-python",
    ),
    _rule(
        r"libcudnn\S*[^\n]*(?:cannot open|not found|No such file)|Unable to load any of \{libcudnn|Could not load library libcudnn|cudnnCreate\w+Descriptor",
        "cuDNN's libraries are missing, or those of another version are loaded",
        "unset LD_LIBRARY_PATH, so that torch's own nvidia-cudnn package is loaded; else reinstall torch",
    ),
    _rule(
        r"undefined symbol: ",
        "a compiled package was built for another version of torch or CUDA",
        "install it again for the installed torch; for flash-attn a wheel of the same torch, CUDA and Python",
    ),
    _rule(
        r"Numpy is not available|compiled using NumPy 1\.x|numpy\.dtype size changed|numpy\.core\.multiarray failed to import",
        "a package was built for numpy 1, and numpy 2 is installed, or the reverse",
        "launch … --with 'numpy<2', or newer versions of that package",
    ),
    _rule(
        r"Descriptors cannot (?:not )?be created directly",
        "protobuf is newer than a package allows",
        "launch … --with 'protobuf<=3.20.3', or a newer version of that package",
    ),
    _rule(
        r"'(?:type|ABCMeta)' object is not subscriptable",
        "the host's Python is too old for the script: types such as list[int] need Python 3.9 or newer",
        "a newer Python   python = … for the host, or an environment of launch (--with …)",
    ),
    _rule(
        r"unsupported operand type\(s\) for \|: '(?:type|NoneType|ABCMeta|_\w+)'",
        "the host's Python is too old for the script: types such as int | None need Python 3.10 or newer",
        "a newer Python   python = … for the host, or an environment of launch (--with …)",
    ),
    _rule(
        r"externally-managed-environment",
        "pip may not install into the system's Python (PEP 668)",
        "a virtual environment: requirements = […] in the job makes one   launch … --with …",
    ),
    _rule(
        r"exec format error|Exec format error",
        "the program or image was built for another processor, such as Apple's ARM",
        "build the image for the host: docker build --platform linux/amd64",
    ),
    _rule(
        r"manifest unknown|manifest for \S+ not found",
        "the image's tag does not exist",
        "look up the tags of that image, and write one of them",
    ),
)

_HOST = (
    _rule(
        r"(?:401|403|404) (?:Client Error|Forbidden|Unauthorized)|[Yy]ou don't have the rights to create|write token",
        "an upload to the hub was refused: this token may not write to that namespace, or the repository does not exist",
        "a token with write permission (--secret HF_TOKEN), or a namespace of your own; model.save_pretrained(...) before the upload keeps the result",
        context=r"/repos/create|xet-write-token|/preupload/|/commit/|in (?:create_repo|push_to_hub|upload_folder|upload_file)\b",
        failure="hub-access",
    ),
    _rule(
        r"[Cc]onnect|[Tt]imeout|timed out|[Oo]ffline ?[Mm]ode|[Nn]ame (?:or service not known|resolution)|RemoteDisconnected|URLError",
        BY_NAME["upload-failed"].why,
        BY_NAME["upload-failed"].mend,
        context=r"(?m)^\s*File \".*\", line \d+, in \w*(?:upload|push_to|create_repo|create_commit|put_object|log_artifact)\w*$",
        failure="upload-failed",
    ),
    _rule(
        r"vllm_client|(?i:connection|reached|disconnected)",
        "the vLLM server that generates for the training does not answer",
        "read the log of that server, and start it again   trl vllm-serve --model …     then resume",
        context=r"vllm_client\.py",
        failure="user-code-error",
    ),
    _rule(
        r"system not yet initialized",
        "the host's fabric manager, which cards with NVSwitch need, does not run",
        "on the host   sudo systemctl start nvidia-fabricmanager     its version must be that of the driver",
    ),
    _rule(
        r"(?:CAS service error|File reconstruction error)(?![^\n]*os error 28)",
        "the download server of Hugging Face's Xet storage did not answer, or broke off",
        "try again, or   -e HF_HUB_DISABLE_XET=1",
    ),
    _rule(
        r"PermissionError: .{0,40}'/\.(?:cache|local|config)|Permission denied: '/(?:\.cache|root)",
        "the user of the process has no home, so its caches would lie at the root of the disk",
        "-e HOME=/tmp -e HF_HOME=/tmp/hf",
    ),
    _rule(
        r"Duplicate GPU detected",
        "two processes use one card",
        "as many processes as cards: --nproc-per-node, and torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
    ),
    _rule(
        r"to finish building extension",
        "a build that was killed has left its lock, and every later one waits for it",
        "on the host   rm -r ~/.cache/torch_extensions     or the folder that the line names",
    ),
    _rule(
        r"inotify (?:watch|instance) limit|inotify_add_watch",
        "the limit of inotify watches is reached: the disk is not full",
        "on the host   sudo sysctl fs.inotify.max_user_watches=524288",
    ),
    _rule(
        r"uid not found",
        "the user of the process has no name in /etc/passwd, as in many containers",
        "-e USER=me -e LOGNAME=me -e TORCHINDUCTOR_CACHE_DIR=/tmp/inductor",
    ),
    _rule(
        r"Command '?\[?'git'|not a git repository",
        "the script asks git about its repository, and launch does not send the folder .git",
        "read os.environ['LAUNCH_COMMIT'], which launch sets, and LAUNCH_DIRTY (0 or 1); "
        "or send .git: a line !.git/ in .launchignore",
    ),
    _rule(
        r"Read-only file system",
        "the script writes to a folder that is read-only there",
        "write below the current folder, which is downloaded, or to a folder in /tmp",
    ),
    _rule(
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "a proxy on the way has a certificate that Python does not know",
        "-e REQUESTS_CA_BUNDLE=FILE -e SSL_CERT_FILE=FILE with the proxy's certificate on the host",
    ),
    _rule(
        r"initialization failed, you might not have a CUDA gpu|CUDA driver initialization failed",
        "the GPU driver does not start for this process",
        "on the host   nvidia-smi     if it fails too, the driver must be loaded again, or the host restarted",
    ),
    _rule(
        r"CUDA driver is a stub library",
        "LD_LIBRARY_PATH leads to CUDA's stub of libcuda, which is only for linking",
        "remove …/stubs from LD_LIBRARY_PATH",
    ),
    _rule(
        r"illegal memory access",
        "a kernel on the card read or wrote outside its memory: a bug of a kernel or extension, such as flash-attn, Triton or bitsandbytes",
        "-e CUDA_LAUNCH_BLOCKING=1 names the call; try without that extension, or another version of it",
    ),
    _rule(
        r"\A\W*(?:KeyboardInterrupt|\^C)",  # not behind the line of another failure
        "somebody pressed Ctrl-C, or SIGINT was sent",
        "start it again if that was not meant",
    ),
    _rule(
        r"(?i)read timed out|connect(?:ion)? ?timed? ?out|ReadTimeout|ConnectTimeout",
        "a server did not answer in time: the network of the host is slow, or blocks it",
        "try again; or download it on this computer, into the folder that is sent, and read it from there",
    ),
)

_RULES: Tuple[_Rule, ...] = (
    *_ADAPTERS,
    *_TEXT,
    *_DATA,
    *_TRAINING,
    *_MEMORY,
    *_DTYPES,
    *_INSTALLATION,
    *_HOST,
)


def cure(near: str, log: str) -> Optional[CauseText]:
    """Return the cause and the cure that a line of a log and those after it show; None if no rule knows them."""
    rule = _rule_of(near, log)
    return rule.cure if rule is not None else None


def is_of_input(line: str) -> bool:
    """Whether a line says that a layer's input has another dtype than its weights."""
    return _INPUT.search(line) is not None


def class_of(near: str, log: str) -> Optional[str]:
    """Return the class of a failure, if a rule knows it better than the line that shows the failure."""
    rule = _rule_of(near, log)
    return rule.failure if rule is not None else None


def _rule_of(near: str, log: str) -> Optional[_Rule]:
    for rule in _RULES:
        if rule.pattern.search(near) and (rule.context is None or rule.context.search(log)):
            return rule
    return None
