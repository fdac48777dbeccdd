"""Policy files to policies: strict, all mistakes at once, each with its line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
)

from batchpolicy import registry
from batchpolicy.component import Component
from batchpolicy.document import Document, Loc, faults_of, short
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.plugin_modules import relative_to
from batchpolicy.policy import Policy
from batchpolicy.predictor import Predictor
from batchpolicy.preemption import Preempt, Preemption, read_preempt
from batchpolicy.reading import SUFFIXES, read_document
from batchpolicy.tenant_places import check_place

_SpecKind = TypeVar("_SpecKind", bound="_Spec")


class _Spec(BaseModel):
    """A plugin's name, its parameters, and the folder that paths in them start from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    base: Path = Field(default_factory=Path.cwd)


class PolicySpec(_Spec):
    """What a file says of its policy."""

    def build(self) -> Policy:
        """A new policy with state of its own.

        Raises
        ------
        ConfigError
            When there is no such policy, or it refuses the parameters.
        """
        return _build("policy", registry.policy_class(self.name, self.base), self)


class PredictorSpec(_Spec):
    """What a file says of its predictor of output lengths."""

    def build(self) -> Predictor:
        """A new predictor with state of its own; see ``PolicySpec.build``."""
        return _build("predictor", registry.predictor_class(self.name, self.base), self)


_Made = TypeVar("_Made", Policy, Predictor)


def _build(kind: str, cls: type[_Made], spec: _Spec) -> _Made:
    with relative_to(spec.base):
        try:
            return cls.model_validate(spec.params)
        except ValidationError as e:
            texts = [text for _, text in faults_of(e, cls, spec.params)]
            raise ConfigError(f"{kind} {spec.name!r}: {' '.join(texts)}") from e
        except ConfigError:
            raise
        except Exception as e:
            raise ConfigError(registry.cannot_be_made(spec.name, cls, e, kind)) from e


class RequestDefaults(Component):
    """Where a request's facts come from, and what holds when it does not say."""

    tenant_from: tuple[Annotated[str, Field(min_length=1), AfterValidator(check_place)], ...] = (
        "vllm_xargs.tenant",
    )
    """Places that may name the tenant; the first that does counts."""
    # Far inside the columns' 64 bits, so that policies can compute with it.
    default_priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    """Priority of requests that ask for none; lower is more urgent."""


class Bounds(Component):
    """What holds under every policy, however it ranks."""

    max_bypass_s: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 2.0
    """Time for which others may pass a request whose KV does not fit; 0 for never."""
    max_wait_s: Annotated[float, Field(gt=0, allow_inf_nan=True)] = math.inf
    """Wait after which a request is overdue and goes before all others; inf for no bound."""
    max_overtakes: PositiveInt | None = None
    """Later arrivals that may start before a request until it is overdue; none for no bound."""
    turns: Literal["tenant", "none"] = "tenant"
    """Whether tenants with overdue requests take turns, or the oldest request goes first."""


class Queue(Component):
    """How long requests may wait, and how many."""

    max_waiting: Annotated[int, Field(ge=0)] | None = None
    """Requests that may wait, beside those that can start; the last in rank are refused."""
    ttl_s: Annotated[float, Field(gt=0, allow_inf_nan=True)] = math.inf
    """Longest wait before a first start, for requests that name none; inf for no limit."""


class Memory(Component):
    """What admission knows of the KV cache."""

    look_ahead: bool = True
    """Start a request only if what runs is expected to fit to its end: by predictions, else by
    the lengths of earlier answers; false for vLLM's way, where it need only fit now."""
    quantile: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.9
    """Chance with which the KV is to suffice at any time to come; where the safety starts."""
    max_preemption_rate: Annotated[float, Field(gt=0.0, lt=1.0)] | None = 0.01
    """Part of the answers that may lose their KV to a shortage on the way: the safety is moved
    until just so many do; none to leave it where ``quantile`` puts it."""
    first_guess_tokens: PositiveInt = 1024
    """Before answers were seen, those of a quarter of this and more, up to all of it, are
    thought equally likely, as far as ``max_tokens`` allows."""


class LimitSettings(Component):
    """Limits below those that the engine was started with; an absent one stays as it is."""

    max_num_seqs: PositiveInt | None = None
    """Requests that run at once."""
    max_num_batched_tokens: PositiveInt | None = None
    """Tokens of one step."""
    prefill_chunk: PositiveInt | None = None
    """Most prompt tokens of one request in one step."""
    tpot_target_s: PositiveFloat | None = None
    """Time between tokens, for requests without a target of their own: with it, limits follow
    what running answers can spare, below those named here; none for limits that stay."""
    decode_gap_s: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 0.2
    """Time after which running answers get a step before prefills go on, in engines whose steps
    hold either (SGLang without mixed chunks); inf to let prefills go first always."""
    long_prompts_give_way: bool = True
    """Compute less of long prompts in a step in which much shorter or more urgent ones could
    start."""


class PolicyConfig(BaseModel):
    """What a policy file says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: PolicySpec
    preempt: Preemption | Preempt | None = None
    bounds: Bounds | None = None
    queue: Queue | None = None
    memory: Memory | None = None
    predictor: PredictorSpec | None = None
    limits: LimitSettings | None = None
    requests: RequestDefaults = RequestDefaults()
    title: str = ""

    @field_validator("policy", mode="before")
    @classmethod
    def _read_policy(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @property
    def label(self) -> str:
        """Short name for tables: the file's, or the policy's."""
        return self.title or self.policy.name.rpartition(":")[2]

    def build_policy(self) -> Policy:
        """A new policy with state of its own; see ``PolicySpec.build``."""
        return self.policy.build()

    def preemption(self) -> Preemption:
        """Who may be displaced: as the file says, else as suits the policy.

        A policy equal to the engine's own order displaces nobody, so that the
        engine's own queue can stay in place.
        """
        if isinstance(self.preempt, Preemption):
            return self.preempt
        if self.preempt is not None:
            return Preemption(by=self.preempt)
        policy = self.build_policy()
        native = policy.native_order() is not None
        return Preemption(by="never" if native else policy.tags.preempts)

    def preempts(self) -> Preempt:
        """The way in which ``preemption`` chooses."""
        return self.preemption().by

    def native_order(self) -> str | None:
        """The engine's own order, if that is all that is asked for; else None."""
        asked = (self.bounds, self.queue, self.memory, self.limits, self.predictor)
        if any(part is not None for part in asked) or self.preempts() != "never":
            return None
        return self.build_policy().native_order()


class PolicyFile(Component):
    """The keys of a policy file; ``policy`` is read apart, as its keys depend on the name."""

    apiVersion: Literal["batchpolicy/v1"]
    kind: Literal["Policy"]
    policy: Any
    preempt: Annotated[Preemption, BeforeValidator(read_preempt)] | None = None
    """Who may be displaced to admit others: ``never``, ``class`` or ``benefit``, or a mapping."""
    bounds: Bounds | None = None
    """What holds under every policy, however it ranks."""
    queue: Queue | None = None
    """How long requests may wait, and how many."""
    memory: Memory | None = None
    """What admission knows of the KV cache."""
    predictor: Any = None
    """How long answers will be; without one, admission learns from earlier answers."""
    limits: LimitSettings | None = None
    """Limits below those that the engine was started with."""
    requests: RequestDefaults = RequestDefaults()


def load_config(path: str | Path) -> PolicyConfig:
    """The policy file at ``path``.

    Raises
    ------
    ConfigError
        With everything that is wrong with the file.
    """
    document = read_document(Path(path))
    read = document.validate(PolicyFile, document.value)
    spec = _spec(document, "policy", registry.POLICIES, registry.policy_class, PolicySpec)
    predictor = _spec(
        document, "predictor", registry.PREDICTORS, registry.predictor_class, PredictorSpec
    )
    document.raise_faults()
    if read is None or spec is None:
        raise AssertionError("a part that could not be read has a fault")
    return PolicyConfig(
        policy=spec,
        preempt=read.preempt,
        bounds=read.bounds,
        queue=read.queue,
        memory=read.memory,
        predictor=predictor,
        limits=read.limits,
        requests=read.requests,
        title=Path(path).stem,
    )


def config_named(text: str) -> PolicyConfig:
    """What a command line calls a policy: a file, an installed name, or where its class is.

    ``text`` is a ``.yaml``, ``.yml`` or ``.json`` file, a name such as ``fcfs``,
    ``module:Class`` or ``path/to/file.py:Class``.

    Raises
    ------
    ConfigError
        When there is no such policy, or it cannot do without parameters.
    """
    if text.endswith(SUFFIXES):
        return load_config(text)
    if ":" not in text and not text.endswith(".py") and Path(text).is_file():
        raise ConfigError(f"{text}: not a policy file; those end in {', '.join(SUFFIXES)}.")
    config = PolicyConfig(policy=PolicySpec(name=text))
    config.build_policy()
    return config


def config_schema() -> dict[str, Any]:
    """JSON schema of a policy file, with the parameters of each installed policy."""
    from batchpolicy.schema import file_schema  # on request only: it imports every policy

    return file_schema(PolicyFile)


def _spec(
    document: Document,
    key: str,
    group: str,
    class_named: Callable[[str, Path], type[Component]],
    kind: type[_SpecKind],
) -> _SpecKind | None:
    """The plugin that a key names, its parameters checked; None where there are faults."""
    given = cast("dict[str, object]", document.value).get(key, document)
    if given is document or (given is None and key == "predictor"):
        return None  # where it has to be there, that is noted with the other keys
    loc: Loc = (key,)
    if not isinstance(given, str | dict):
        document.fault(loc, f"{key} is {short(given)}; expected a name, or a mapping with one.")
        return None
    params = {"name": given} if isinstance(given, str) else cast("dict[str, object]", given).copy()
    at = (*loc, "name")
    if "name" not in params:
        known = ", ".join(registry.names(group))
        document.fault(loc, f"{key}.name is missing. Installed: {known or 'none'}.")
        return None
    name = params.pop("name")
    if not isinstance(name, str):
        document.fault(at, f"{key}.name is {short(name)}; expected a name.")
        return None
    base = document.path.absolute().parent
    try:
        cls = class_named(name, base)
    except BatchPolicyError as e:
        document.fault(at, str(e))
        return None
    with relative_to(base):
        made = document.validate(cls, params, loc)
    return None if made is None else kind(name=name, params=params, base=base)
