"""The plan for a script that knows nothing of it: the start-up hook changes what the script asks torch and its kin for.

    changes         what was changed, and what was left alone: printed once each, and recorded
    adapted_models  from_pretrained, and a model that is about to be trained
    trainers        TrainingArguments and Trainer
    accelerators    accelerate's Accelerator
    adapted_split   the batch of a step
    loops           a loop in plain torch: autocast, GradScaler, optimizers
    scaling         the plan's scaler for a loop that has none

All events of such a script are the hook's: its end is judged by its exit code, its log and the guard.
"""
