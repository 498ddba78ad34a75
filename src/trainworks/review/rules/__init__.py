"""The rules, one module per domain."""
