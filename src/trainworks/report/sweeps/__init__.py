"""Sweeps and range tests as documents."""
