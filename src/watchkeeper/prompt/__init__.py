"""Typed prompts: sections, templates, what they render to, and what an answer must look like."""
