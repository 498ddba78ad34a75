"""Commands that watch, compare and diagnose runs."""
