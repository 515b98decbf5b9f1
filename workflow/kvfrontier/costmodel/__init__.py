"""Formulas of bytes and time, from a model and a device."""
