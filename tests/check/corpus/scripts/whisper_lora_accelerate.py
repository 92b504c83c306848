"""Whisper-large adapters for a dialect, Accelerate loop."""
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from dialect import DialectSet

CKPT_KWARGS = dict(use_reentrant=True)


def main():
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
    processor = WhisperProcessor.from_pretrained("openai/whisper-large-v3", language="german", task="transcribe")
    base = WhisperForConditionalGeneration.from_pretrained("openai/whisper-large-v3", dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"], lora_dropout=0.05))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CKPT_KWARGS)
    data = DialectSet("bairisch", processor)
    loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=data.collate)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    for epoch in range(3):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(input_features=batch["input_features"], labels=batch["labels"]).loss
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
        accelerator.print(epoch, loss.item())
    accelerator.unwrap_model(model).save_pretrained("whisper-bairisch")


if __name__ == "__main__":
    main()
