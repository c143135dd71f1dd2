"""Prompts with images for llama.cpp."""
