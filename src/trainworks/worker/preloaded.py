"""What the fork server imports before the first rank needs it; ranks are forked from it with all of this at hand."""

import torch.distributed.checkpoint.state_dict
import transformers.models.auto.modeling_auto

import trainworks.worker.train

__all__ = ["torch", "trainworks", "transformers"]
