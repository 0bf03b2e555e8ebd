"""The network between hosts: which NICs to use, and what all ranks learn about it.

`agreement` is what a new process group calls. It, ``nic`` and ``exchange`` ask the machine or the
store; the others are pure. Nothing imports torch.
"""
