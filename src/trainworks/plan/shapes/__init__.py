"""Conversion of Hugging Face configs to a ModelShape: one function per family."""
