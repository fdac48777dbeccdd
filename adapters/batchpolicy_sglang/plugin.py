"""What SGLang calls in each of its processes, first in the one that reads the command line."""

from __future__ import annotations

import sys


def register() -> None:
    """Put the policy of the file in ``BATCHPOLICY_CONFIG`` into the scheduler; else do nothing.

    SGLang only logs what a plug-in raises and goes on without it. A server that was asked
    for a policy must not serve without one, so that what is wrong ends the process.

    Raises
    ------
    SystemExit
        With status 2, after what is wrong has been printed.
    """
    from batchpolicy.errors import BatchPolicyError
    from batchpolicy_sglang.settings import configured

    try:
        if configured() is None:
            return
        # Who does not schedule need not import a scheduler.
        if "sglang.srt.managers.scheduler" in sys.modules:
            from batchpolicy_sglang.hooks import install

            install()
    except BatchPolicyError as e:
        print(f"batchpolicy: {e}", file=sys.stderr)
        raise SystemExit(2) from None
