"""Tsallis inside other libraries."""
