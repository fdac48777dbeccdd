"""Trains predictors on files of prompts and answers, and tells how good they are."""
