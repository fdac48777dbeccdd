"""The light engine held to the step plans of a real one."""
