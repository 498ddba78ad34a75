"""Which jobs start now, which give way, and why the others wait: pure code over a snapshot."""
