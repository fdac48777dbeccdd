"""batchpolicy in the real SGLang scheduler."""
