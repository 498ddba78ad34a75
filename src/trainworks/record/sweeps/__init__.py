"""The record of a sweep."""
