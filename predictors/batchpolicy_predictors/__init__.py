"""Predictors of output lengths."""
