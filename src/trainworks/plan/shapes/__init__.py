"""From the words of a Hugging Face config to a ModelShape: one function per family."""
