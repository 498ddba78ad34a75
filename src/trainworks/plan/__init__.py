"""Planning arithmetic: predictions from a description and known facts. No files, no clock, no processes."""
