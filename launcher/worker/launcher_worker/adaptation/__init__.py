"""Apply the plan to a script that does not use the worker: the start-up hook changes the script's library calls.

    changes         the report of changes and of unchanged parts: printed once each, and recorded
    adapted_models  from_pretrained, and models before training
    trainers        TrainingArguments and Trainer
    accelerators    accelerate's Accelerator
    adapted_split   the batch of a step
    loops           a loop in plain torch: autocast, GradScaler, optimizers
    scaling         scaled gradients for a loop that uses no scaler
    half_weights    half-precision weights outside of the found models

The hook is the source of all events of such a script. The script's exit code, its log and the guard decide
how it ended.
"""
