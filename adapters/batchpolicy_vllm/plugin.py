"""What vLLM calls in each of its processes, first in the one that reads the command line."""

from __future__ import annotations

import sys


def register() -> None:
    """Refuse a policy file with mistakes before a model is loaded for it.

    Only the file in ``BATCHPOLICY_CONFIG`` is known here; one that is named in
    ``--additional-config`` is read when the scheduler is made.

    Raises
    ------
    SystemExit
        With status 2, after the mistakes have been printed.
    """
    from batchpolicy.errors import BatchPolicyError
    from batchpolicy_vllm.settings import configured

    try:
        configured(None)
    except BatchPolicyError as e:
        print(f"batchpolicy: {e}", file=sys.stderr)
        raise SystemExit(2) from None
