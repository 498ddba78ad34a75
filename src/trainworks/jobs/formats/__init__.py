"""A job in the languages of other engines."""
