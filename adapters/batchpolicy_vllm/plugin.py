"""What vLLM calls in each of its processes, first in the one that reads the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence


def register() -> None:
    """Refuse a policy file with mistakes before a model is loaded for it.

    Raises
    ------
    SystemExit
        With status 2, after the mistakes have been printed.
    """
    from batchpolicy.errors import BatchPolicyError
    from batchpolicy_vllm.settings import configured

    try:
        configured(_additional_config(sys.argv[1:]))
    except BatchPolicyError as e:
        print(f"batchpolicy: {e}", file=sys.stderr)
        raise SystemExit(2) from None


def _additional_config(arguments: Sequence[str]) -> object:
    """What ``--additional-config`` says; vLLM tells a plug-in nothing of its options.

    None where it is absent or no JSON, of which vLLM itself complains.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--additional-config", "--additional_config", dest="given")
    try:
        given = parser.parse_known_args(arguments)[0].given
        found: object = json.loads(given) if given else None
    except (argparse.ArgumentError, ValueError):
        return None
    return found
