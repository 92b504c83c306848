"""All rules, by their codes."""

from __future__ import annotations

from launcher.check.rule import Rule
from launcher.check.rules import (
    bf16_gate,
    bf16_model_in_fp16,
    bf16_unsupported,
    cast_after_optimizer,
    compile_unsupported,
    cuda_before_fork,
    device_map_with_trainer,
    fixed_device,
    fixed_port,
    flash_attention_unsupported,
    fp16_trainables,
    half_modules_to_save,
    labels_all_masked,
    load_without_map_location,
    lora_reentrant,
    nan_filter,
    no_checkpoints,
    precision_by_chance,
    pure_fp16_optimizer,
    removed_argument,
    resume_ignored,
    step_outside_scaler,
    tf32_unsupported,
)

RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in (
        fp16_trainables.RULE,
        bf16_unsupported.RULE,
        bf16_gate.RULE,
        precision_by_chance.RULE,
        cast_after_optimizer.RULE,
        pure_fp16_optimizer.RULE,
        half_modules_to_save.RULE,
        nan_filter.RULE,
        step_outside_scaler.RULE,
        bf16_model_in_fp16.RULE,
        device_map_with_trainer.RULE,
        fixed_device.RULE,
        fixed_port.RULE,
        cuda_before_fork.RULE,
        resume_ignored.RULE,
        no_checkpoints.RULE,
        load_without_map_location.RULE,
        flash_attention_unsupported.RULE,
        compile_unsupported.RULE,
        tf32_unsupported.RULE,
        lora_reentrant.RULE,
        labels_all_masked.RULE,
        removed_argument.RULE,
    )
}
