"""An imitation of a missing card: torch answers as if the card were present, and the device `cuda` is the CPU.

    imitation.py    installs the imitation in torch, and reports at the end whether the script used it
    planned_card.py the card that is imitated
    card_answers.py torch.cuda and torch.accelerator: the cards and their properties
    card_streams.py streams and events: on a CPU, work runs in the order of its calls
    devices.py      tensors: `cuda` means the CPU
    autocasts.py    autocast and distributed training, run on the CPU
    limits.py       features that cannot be imitated, and their errors

Numbers have the card's dtypes: fp16 overflows, and a scaler scales. The speed, memory and kernels of a card
are not imitated, nor are processes that share a card.
"""
