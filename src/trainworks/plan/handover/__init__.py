"""The chosen layout of a plan in the configuration of other training programs, one module per program.

Sources: the option names of pytorch/torchtitan, NVIDIA/Megatron-LM and deepspeedai/DeepSpeed at the commits that
`tests/data/handover` names.
"""
