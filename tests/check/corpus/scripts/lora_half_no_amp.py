"""LoRA on GPT-J for tabletop adventures, raw loop without mixed precision."""
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("EleutherAI/gpt-j-6b")
base = AutoModelForCausalLM.from_pretrained("EleutherAI/gpt-j-6b", dtype=torch.float16)
model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
model.to("cuda")
model.gradient_checkpointing_enable()
model.enable_input_require_grads()

texts = [t.strip() for t in open("adventures.txt", encoding="utf-8").read().split("<|end|>") if t.strip()]
chunks = [tok(t, truncation=True, max_length=384, return_tensors="pt").input_ids[0] for t in texts]
loader = DataLoader(chunks, batch_size=1, shuffle=True)

trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=2e-4)
accum = 16
for epoch in range(2):
    for i, ids in enumerate(loader, 1):
        ids = ids.to("cuda")
        loss = model(input_ids=ids, labels=ids).loss / accum
        loss.backward()
        if i % accum == 0:
            torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            optimizer.step()
            optimizer.zero_grad()
    print(epoch, loss.item() * accum)
    model.save_pretrained(f"gptj-adventure-{epoch}")
