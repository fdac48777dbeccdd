"""The files that a study leaves in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from batchpolicy_tuning import output
from batchpolicy_tuning.tune.deploy import NAMES, flags, write_policy
from batchpolicy_tuning.tune.result import FILE, Conclusion, StudyResult
from batchpolicy_tuning.tune.settings import Setting

POLICY_FILES: Mapping[Conclusion, str] = {
    Conclusion.WINNER: "policy.yaml",
    Conclusion.KEEP_BASELINE: "policy.yaml",
    Conclusion.INCONCLUSIVE: "candidate.yaml",
    Conclusion.NOTHING_FEASIBLE: "closest.yaml",
    Conclusion.UNFINISHED: "candidate.yaml",
}
"""Only what may be deployed is called a policy."""
FLAGS_FILE = "flags.txt"
PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class Outputs:
    """What is to be written, and where."""

    folder: Path
    setting: Setting | None
    policy_path: Path | None
    flags: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def policy_name(self) -> str | None:
        """Path of the policy file; None where there is no setting."""
        return None if self.policy_path is None else str(self.policy_path)

    def write(self, result: StudyResult) -> None:
        """Write them all; policy file and page of an earlier conclusion are removed."""
        for name in {*POLICY_FILES.values(), FLAGS_FILE, PAGE}:
            (self.folder / name).unlink(missing_ok=True)
        if self.setting is not None and self.policy_path is not None:
            write_policy(self.setting, self.policy_path, _remarks(result))
            told = "\n".join(f"{engine}: {text}" for engine, text in self.flags.items())
            output.write_whole(f"{told}\n", self.folder / FLAGS_FILE)
        write_study(result, self.folder)


def write_study(result: StudyResult, folder: Path) -> None:
    """Write ``study.json`` alone."""
    output.write_whole(result.model_dump_json(indent=1) + "\n", folder / FILE)


def outputs_of(folder: Path, conclusion: Conclusion, setting: Setting | None) -> Outputs:
    """The files of a conclusion; without a setting only ``study.json``."""
    if setting is None:
        return Outputs(folder, None, None)
    return Outputs(folder, setting, folder / POLICY_FILES[conclusion], flags(setting.limits))


def _remarks(result: StudyResult) -> list[str]:
    return [
        f"batchpolicy tune {result.file}: {result.conclusion}",
        *result.summary,
        *(f"Start {NAMES[engine]} with {text}" for engine, text in result.flags.items()),
    ]
