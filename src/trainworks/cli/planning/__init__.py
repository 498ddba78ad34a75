"""Commands that predict: nothing is started."""
