"""Trainworks: from a training goal to a trained model, with a plan that the run has to answer for."""

__version__ = "0.1.0"
