from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from batchpolicy_tuning.pool import not_interrupted


def test_an_interrupt_waits_until_a_process_has_been_started() -> None:
    begun = False
    # What is started in the background by a shell ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), not_interrupted():
            signal.raise_signal(signal.SIGINT)
            begun = True
    finally:
        signal.signal(signal.SIGINT, before)
    assert begun


def test_the_first_process_of_all_lets_no_signal_through() -> None:
    # What keeps track of shared memory starts with it, and opens the mask when it has begun.
    code = (
        "import signal\n"
        "from multiprocessing import resource_tracker\n"
        "from batchpolicy_tuning.pool import not_interrupted\n"
        "with not_interrupted():\n"
        "    resource_tracker.ensure_running()\n"
        "    print(*sorted(int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, [])))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{int(signal.SIGINT)} {int(signal.SIGTERM)}\n"
