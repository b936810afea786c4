"""Observers that ship: resources and pace, stalls and error cascades, drift; and the tool to answer them."""
