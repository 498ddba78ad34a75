"""Keys of `checkpoint`."""
