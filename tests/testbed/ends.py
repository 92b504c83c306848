"""Logs of commands that ended with exit status 0: over thirty that failed all the same, over thirty that only look odd.

Each is (name, log, verdict): `failed` with its class, `doubt` with its class, or None for a plain success. The lines have
the formats of nanoGPT, Trainer, JSON lines, tqdm, Lightning, Keras, Accelerate, kohya, fairseq and people's own loops.
"""

HEAD = "Traceback (most recent call last):\n"
FRAME = f'{HEAD}  File "/home/me/train.py", line 88, in main\n    trainer.train()\n'
GOOD = "".join(f"iter {n}: loss {3 - n / 10:.4f}, time 20.10ms, mfu 5.00%\n" for n in range(10))
NANO = "iter {n}: loss nan, time 20.10ms, mfu 5.00%\n"
BAR = "\r Epoch 1:  {p}%|{h}| {n}/40 [00:10<00:20,  9.9it/s, loss={loss}, v_num=0]"
TRAINER = "{{'loss': '{loss}', 'grad_norm': '{norm}', 'learning_rate': '0.001', 'epoch': '{epoch}'}}\n"
FINE = "".join(TRAINER.format(loss=2.5 - n / 5, norm=1.0, epoch=n / 10) for n in range(5))
SUMMARY = "{'train_runtime': '7.2', 'train_samples_per_second': '99.1', 'train_loss': '1.9', 'epoch': '1'}\n"
UNSCALE = "ValueError: Attempting to unscale FP16 gradients."
NO_BF16 = "ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu if you want to train the model on CPU."
TWO = "RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float"


def bars(*losses: str) -> str:
    """Return a Lightning bar with these losses."""
    return "".join(BAR.format(p=n * 2, h="#" * n, n=n, loss=loss) for n, loss in enumerate(losses, 1)) + "\n"


def lines(*losses: str) -> str:
    """Return JSON lines with these losses, as Python prints them."""
    return "".join(f'{{"step": {n * 10}, "loss": {loss}, "lr": 0.001}}\n' for n, loss in enumerate(losses, 1))


TRAINING_FAILED = f"loading the model\n❌ Training failed: {UNSCALE[12:]}\n"
SHAPES = "❌ Training failed: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x2)\n"
DTYPES = "expected m1 and m2 to have the same dtype, but got: float != c10::BFloat16"
NO_BOARD = "Error: could not find tensorboard, logging disabled\n"
FP16 = ("failed", "fp16-unscale")
NAN = ("failed", "nan-divergence")

BAD = [
    ("nanoGPT: the last line", GOOD + NANO.format(n=10), NAN),
    ("nanoGPT: most lines", GOOD + "".join(NANO.format(n=n) for n in range(10, 40)), NAN),
    ("nanoGPT: then a checkpoint", GOOD + NANO.format(n=10) + "saving checkpoint to out\n", NAN),
    ("nanoGPT: infinite", GOOD + "iter 10: loss inf, time 20.10ms, mfu 5.00%\n", NAN),
    ("JSON: bare NaN", lines("2.5", "2.4", "NaN"), NAN),
    ("JSON: 21 of 30", lines(*["2.5"] * 9, *["NaN"] * 21), NAN),
    ("JSON: Infinity", lines("2.5", "2.4", "Infinity"), NAN),
    ("JSON: quoted", lines("2.5", '"nan"'), NAN),
    ("JSON: behind a clock", "".join(f"[12:00:0{n}] {line}\n" for n, line in enumerate(lines("2.5", "NaN").splitlines())), NAN),
    ("Trainer: the last loss", FINE + TRAINER.format(loss="nan", norm="nan", epoch="0.6"), NAN),
    ("Trainer: filtered to zero", FINE + TRAINER.format(loss="0", norm="nan", epoch="0.6"), NAN),
    ("Trainer: then its summary", FINE + TRAINER.format(loss="nan", norm="nan", epoch="0.6") + SUMMARY, NAN),
    ("Trainer: bare numbers", FINE + "{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': 0.6}\n", NAN),
    ("Trainer: then a farewell", FINE + TRAINER.format(loss="nan", norm="1", epoch="0.6") + "Done! Saved to out/\n", NAN),
    ("bar: the last postfix", bars("2.5", "2.4", "nan"), NAN),
    ("bar: from the first step", bars("nan", "nan"), NAN),
    ("bar: tqdm's own postfix", " 10%|#         | 4/40 [00:01<00:09, 4.00it/s, loss=2.1]\r 12%|#2        | 5/40 [00:01<00:09, 4.00it/s, loss=nan]\n", NAN),
    ("Keras", "Epoch 1/2\n40/40 - 1s - 20ms/step - loss: 2.4\nEpoch 2/2\n40/40 - 1s - 20ms/step - loss: nan\n", NAN),
    ("a loop: key and value", "epoch 0 loss 2.31\nepoch 1 loss 1.90\nepoch 2 loss nan\n", NAN),
    ("a loop: key=value", "step=1 loss=2.31\nstep=2 loss=nan\n", NAN),
    ("a loop: train_loss", "Epoch 1: train_loss=2.31 val_loss=2.40\nEpoch 2: train_loss=nan val_loss=nan\n", NAN),
    ("Accelerate's logger", "INFO:__main__:step 10 loss: 2.31\nINFO:__main__:step 20 loss: nan\n", NAN),
    ("caught: unscale", f"loading the model\n❌ Training failed: {UNSCALE[12:]}\n", ("failed", "fp16-unscale")),
    ("caught: its traceback printed", FRAME + UNSCALE + "\nSkipping the rest.\n", ("failed", "fp16-unscale")),
    ("caught: after steps", FINE + FRAME + UNSCALE + "\n", ("failed", "fp16-unscale")),
    ("caught: no bf16", f"Error during training: {NO_BF16[12:]}\n", ("failed", "bf16-unsupported")),
    ("caught: two dtypes", f"training failed with {TWO}\nbye\n", ("failed", "bf16-dtype-mismatch")),
    ("caught: then a farewell", TRAINING_FAILED + "Training finished.\n", FP16),
    ("caught: then another farewell", TRAINING_FAILED + "Training complete!\n", FP16),
    ("caught: then `done`", TRAINING_FAILED + "done\n", FP16),
    ("caught: then its traceback", TRAINING_FAILED + FRAME + UNSCALE + "\nTraining completed successfully\n", FP16),
    ("caught: then fifteen lines", TRAINING_FAILED + "".join(f"removed shard {n}\n" for n in range(15)), FP16),
    ("caught: then an evaluation", TRAINING_FAILED + "{'eval_loss': '7.1', 'eval_runtime': '1.2', 'epoch': '0'}\n", FP16),
    ("caught: expected, as torch says it", f"❌ Training failed: {DTYPES}\n", ("failed", "bf16-dtype-mismatch")),
    ("caught: behind another error", f"{NO_BOARD}KeyError: 'x'\n{TRAINING_FAILED}", FP16),
    ("caught: logged", f"2026-11-22 10:00:00 ERROR train: {UNSCALE}\n", ("failed", "fp16-unscale")),
    ("caught: a full card", FINE + f"{FRAME}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", ("doubt", "cuda-oom")),
    ("caught: its own mistake", f"{FRAME}KeyError: 'labels'\nTraining failed, see above\n", ("doubt", "user-code-error")),
    ("caught: shapes", SHAPES, ("doubt", "unknown")),
    ("caught: shapes, then a farewell", SHAPES + "Training finished.\n", ("doubt", "unknown")),
    ("caught: a file", "Training failed: [Errno 2] No such file or directory: 'train.jsonl'\n", ("doubt", "unknown")),
    ("caught: no rows", "loading\nERROR: training aborted, dataset has 0 rows\n", ("doubt", "unknown")),
    ("caught: a key", "KeyError: 'text'\nTraining finished.\n", ("doubt", "user-code-error")),
    ("a loop without a step", "loss 2.31\nloss nan\nloss nan\n", ("doubt", "nan-divergence")),
    ("k-fold: the last fold", "Fold 1: loss 0.5\nFold 2: loss nan\nFold 3: loss nan\n", ("doubt", "nan-divergence")),
    ("k-fold: its epochs", "Fold 1 epoch 1 loss 0.5\nFold 1 epoch 2 loss nan\nFold 1 epoch 3 loss nan\n", ("doubt", "nan-divergence")),
    ("LR finder: a bar", "LR finder:  5%|#  | 1/20 [00:01<00:09, 4.00it/s, loss=nan]\rLR finder: 10%|#  | 2/20 [00:01<00:09, 4.00it/s, loss=nan]\n", ("doubt", "nan-divergence")),
    ("a demo of dtypes", f"float @ float: ok\nfloat @ bfloat16: {DTYPES}\nhalf @ half: ok\n", ("doubt", "bf16-dtype-mismatch")),
    ("a demo that names the error", f"float @ bfloat16: RuntimeError: {DTYPES}\nhalf @ half: ok\n", ("doubt", "bf16-dtype-mismatch")),
    ("SIGTERM: Lightning", bars("2.5", "2.4") + "[rank: 0] Received SIGTERM: 15\n" + bars("2.3"), ("doubt", "preempted")),
    ("SIGTERM: a handler of the script", GOOD + "SIGTERM received, saving a checkpoint\nsaved ckpt.pt\n", ("doubt", "preempted")),
]  # fmt: skip

EVAL = "{'eval_loss': '2.1', 'eval_runtime': '1.2', 'eval_samples_per_second': '80', 'epoch': '1'}\n"
ODD = [
    ("a server that the script ended", GOOD + "[server] received SIGTERM, shutting down\n{'eval_accuracy': 0.9}\n", None),
    ("SIGTERM, and the training continued", "Received SIGTERM: 15\n" + GOOD * 2, None),
    ("nothing printed", "", None),
    ("only words", "hello\n", None),
    ("an evaluation only", EVAL, None),
    ("an evaluation only, as JSON", '{"eval_loss": 2.1, "accuracy": 0.7}\n', None),
    ("an evaluation without samples", "{'eval_loss': 'nan', 'eval_runtime': '0.1', 'epoch': '1'}\n", None),
    ("an empty metric", FINE + "precision: nan (no positive samples)\n" + SUMMARY, None),
    ("an empty class", GOOD + "class 7: AP nan, AR nan\nclass 8: AP 0.71, AR 0.80\n", None),
    ("an accuracy that is not measured", lines("2.5", "2.4") + '{"val_acc": NaN}\n', None),
    ("a comment", GOOD + "# note: the loss can become nan with fp16, see the README\n", None),
    ("advice", "If loss is nan, lower the learning rate.\n" + GOOD, None),
    ("a setting", "detect_nan: True, nan_policy: skip\n" + GOOD, None),
    ("a check", GOOD + "loss is finite: no nan found in 10 steps\n", None),
    ("a NaN that was overcome", GOOD[:200] + NANO.format(n=5) + GOOD, None),
    ("a scaler that overflowed", TRAINER.format(loss="2.5", norm="inf", epoch="0.1") + FINE + SUMMARY, None),
    ("a norm at the end", FINE + TRAINER.format(loss="1.4", norm="inf", epoch="0.6") + SUMMARY, None),
    ("early stopping", GOOD + "Early stopping: no improvement for 3 evaluations\n", None),
    ("early stopping, Lightning", bars("2.5", "2.4") + "Monitored metric val_loss did not improve in the last 3 records. Best score: 1.90. Signaling Trainer to stop.\n", None),
    ("a best value not known yet", "best val_loss: inf\n" + GOOD, None),
    ("a loss of zero", FINE + TRAINER.format(loss="0", norm="0.5", epoch="0.6") + SUMMARY, None),
    ("a full card, then smaller batches", f"{FRAME}torch.OutOfMemoryError: CUDA out of memory.\nretrying with batch 4\n" + GOOD, None),
    ("fp16 tried, then fp32", f"fp16 failed: {UNSCALE[12:]}\nfalling back to fp32\n" + GOOD, None),
    ("fp16 tried, then fp32, quietly", f"caught: {UNSCALE}\n" + "".join(f"saved shard {n}\n" for n in range(20)), None),
    ("a package that is not there", f"{FRAME}ModuleNotFoundError: No module named 'flash_attn'\nusing sdpa\n" + GOOD, None),
    ("a warning", "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.\n" + GOOD, None),
    ("an object that dies late", GOOD + f"Exception ignored in: <function Pool.__del__ at 0x7f>\n{FRAME}AttributeError: 'NoneType'\n", None),
    ("a retried download", "Retrying: HTTPSConnectionPool(host='x', port=443): Read timed out.\n" + GOOD, None),
    ("one epoch without a step", "Epoch 1/1\n0it [00:00, ?it/s]\nnothing to train on\n", None),
    ("a dry run", "--dry-run given: would train 100 steps\n", None),
    ("Trainer's whole training", FINE + EVAL + SUMMARY, None),
    ("success in words", f"{FRAME}RuntimeError: probe failed\nTraining completed successfully\n", None),
    ("a sweep", "lr=0.1: loss 0.5\nlr=10: loss nan\nlr=100: loss nan\nbest lr=0.1\n", None),
    ("a sweep: the last row", "lr=0.1: loss 0.5\nlr=10: loss nan\n", None),
    ("a sweep: logged", "INFO:root:learning_rate=0.1 loss=0.5\nINFO:root:learning_rate=10 loss=nan\nINFO:root:learning_rate=99 loss=nan\n", None),
    ("a sweep: configurations", "config 1: loss 0.5\nconfig 2: loss nan\nconfig 3: loss nan\n", None),
    ("a sweep: trials", "Trial 1/3: loss 0.5\nTrial 2/3: loss nan\nTrial 3/3: loss nan\n", None),
    ("float16 instead", "bfloat16 is not supported on this GPU, using float16\n" + "answer: 42\n" * 4, None),
    ("bf16 skipped", "bf16 is not supported on this GPU, skipped\n", None),
    ("fp32 instead", "Your setup doesn't support bf16/gpu. using fp32\n", None),
    ("an expected error", f"got expected error '{UNSCALE[12:]}'\nall tests passed\n", None),
    ("fp32 instead, after a traceback", f"{FRAME}{UNSCALE}\nfalling back to fp32\n" + "answer: 42\n" * 4, None),
    ("a measured error", "Error: 0.034\n", None),
    ("an error rate", "Error rate: 12.5%\n", None),
    ("no errors", "Errors: 0\n", None),
    ("no TensorBoard", NO_BOARD + GOOD * 3, None),
    ("no TensorBoard, nothing else", NO_BOARD, None),
]  # fmt: skip
