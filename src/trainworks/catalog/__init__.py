"""FACTS: accelerators, nodes, links and models, each figure with its source, date and confidence."""
