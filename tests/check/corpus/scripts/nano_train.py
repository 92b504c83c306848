"""A small GPT trained from scratch; runs on one card or under torchrun.

$ python nano_train.py
$ torchrun --standalone --nproc_per_node=4 nano_train.py
"""
import math
import os
import time
from contextlib import nullcontext

import numpy as np
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, GPTConfig

out_dir = 'out'
init_from = 'scratch' # or 'resume'
batch_size, block_size = 12, 1024
n_layer, n_head, n_embd = 12, 12, 768
learning_rate, min_lr, warmup_iters, max_iters = 6e-4, 6e-5, 2000, 600000
grad_clip = 1.0
backend = 'nccl'
device = 'cuda' # 'cpu', 'cuda', 'cuda:0', 'mps'
dtype = 'float16'
compile = True

ddp = int(os.environ.get('RANK', -1)) != -1
if ddp:
    init_process_group(backend=backend)
    ddp_local_rank = int(os.environ['LOCAL_RANK'])
    device = f'cuda:{ddp_local_rank}'
    torch.cuda.set_device(device)
    master_process = int(os.environ['RANK']) == 0
else:
    master_process = True
os.makedirs(out_dir, exist_ok=True)
torch.backends.cuda.matmul.allow_tf32 = True
device_type = 'cuda' if 'cuda' in device else 'cpu'
ptdtype = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}[dtype]
ctx = nullcontext() if device_type == 'cpu' else torch.amp.autocast(device_type=device_type, dtype=ptdtype)

data = np.memmap('train.bin', dtype=np.uint16, mode='r')
def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i:i+block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i+1:i+1+block_size].astype(np.int64)) for i in ix])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)

model = GPT(GPTConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=block_size))
iter_num = 0
if init_from == 'resume':
    checkpoint = torch.load(os.path.join(out_dir, 'ckpt.pt'), map_location=device)
    model.load_state_dict(checkpoint['model'])
    iter_num = checkpoint['iter_num']
model.to(device)
scaler = torch.amp.GradScaler('cuda', enabled=(dtype == 'float16'))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), fused=True)
if compile:
    model = torch.compile(model)
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank])

def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    r = min(1.0, (it - warmup_iters) / (max_iters - warmup_iters))
    return min_lr + 0.5 * (1 + math.cos(math.pi * r)) * (learning_rate - min_lr)

t0 = time.time()
while iter_num < max_iters:
    for g in optimizer.param_groups:
        g['lr'] = get_lr(iter_num)
    X, Y = get_batch()
    with ctx:
        logits, loss = model(X, Y)
    scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 1000 == 0 and master_process:
        raw = model.module if ddp else model
        torch.save({'model': raw.state_dict(), 'iter_num': iter_num}, os.path.join(out_dir, 'ckpt.pt'))
        print(f"iter {iter_num} loss {loss.item():.4f} {time.time()-t0:.1f}s")
    iter_num += 1
if ddp:
    destroy_process_group()
