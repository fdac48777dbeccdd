"""Other ways to know how long a step takes than the formula of ``batchpolicy.step_cost``."""
