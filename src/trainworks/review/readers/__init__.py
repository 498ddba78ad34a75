"""One small parser per format, each with the places of what it reads."""
