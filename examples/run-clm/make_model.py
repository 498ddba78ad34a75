"""Write what `run_clm.py` trains on in the example: the config and tokenizer of a tiny GPT-2, and a text.

    python examples/run-clm/make_model.py FOLDER

`FOLDER/model` has the config and the tokenizer, and no weights: `run_clm.py --config_name` starts from random ones.
`FOLDER/text.txt` has modules of Python's standard library, a line of code per example, so nothing is downloaded.
"""

import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, PreTrainedTokenizerFast

MODULES = ("argparse", "ast", "datetime", "inspect", "tarfile", "turtle", "typing")
END_OF_TEXT = "<|endoftext|>"


def main(folder: Path) -> None:
    sources = Path(sysconfig.get_path("stdlib"))
    text = "".join((sources / f"{module}.py").read_text(encoding="utf-8") for module in MODULES)
    (folder / "text.txt").write_text(text, encoding="utf-8")

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [text],
        trainers.BpeTrainer(
            vocab_size=1024, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END_OF_TEXT, model_max_length=128)
    tokenizer.save_pretrained(folder / "model")
    GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=128,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    ).save_pretrained(folder / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
