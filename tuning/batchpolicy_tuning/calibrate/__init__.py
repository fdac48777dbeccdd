"""``batchpolicy calibrate``: a step cost fitted to a real run, judged on what it did not see."""
