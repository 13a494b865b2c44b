"""`MomentumController`: a guest in the optimizer that realizes a policy exactly, step by step.

In a step pre-hook it closes what was observed, asks the policy, and writes every cohort's momentum
and learning rate; in the post-hook it puts back what was there. Between steps the optimizer looks
as if nobody were there, so schedulers, checkpoints, fused and foreach kernels see nothing new.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from .ages import Ages
from .checkpoint import Staged, fitting_groups, require_same, signature, stage, write
from .guard import Guard, tagged
from .momentum import Group, Writer, base_momenta, binding_of, require_served
from .plan import Plan, parts_of
from .policy import Policy, checked
from .pool import Pool, on_host
from .probe import Loss, Number, Probe, batches_of
from .step import Step, after_closure

_KEY = "vcmm"  # of our state inside the optimizer's state_dict
_BETA = "vcmm_beta"  # of the current momentum inside a param_group, for loggers


class MomentumController:
    """Gives each modality of an optimizer the momentum that a policy decides.

    Args:
        optimizer: any that `vcmm.momentum` has a `Binding` for, over groups tagged with a
            `modality`, as `modal_groups` makes them. It is used as before.
        policy: what momentum each modality should have.
        exact: correct the bias of the time-varying momentum exactly. False is an ablation.
        process_group: ranks whose batches count as one; None is the default group, if there is one.
        loss: the loss whose gradient is probed: "cross_entropy", or a function of logits and target
            that gives a value per sample.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        policy: Policy,
        *,
        exact: bool = True,
        process_group: dist.ProcessGroup | None = None,
        loss: Loss = "cross_entropy",
    ) -> None:
        self.optimizer = optimizer
        self.policy = policy
        self.exact = exact
        if loss != "cross_entropy" and not callable(loss):
            raise ValueError(
                f'loss is {loss!r}; it must be "cross_entropy" or a function of logits and target '
                'that is per sample, for instance partial(F.mse_loss, reduction="none")'
            )
        self.loss: Loss = loss
        self._writer = Writer(binding_of(optimizer))
        if not exact and self._writer.binding.correction == "inherent":
            raise ValueError(
                f"{type(optimizer).__name__} needs no correction from outside, so there is none to "
                "leave out; drop exact=False"
            )
        base = {name: float(beta) for name, beta in self._base().items()}
        if not base:
            raise ValueError(
                "no parameter group carries a modality; build the optimizer over "
                "modal_groups(model, audio=model.audio, video=model.video)"
            )
        require_served(optimizer, tagged(optimizer))
        policy.check(base)
        self._ages = Ages()
        self._pool = Pool(base, process_group, _device_of(tagged(optimizer)))
        self._betas: dict[str, Number] = {}
        self._unmeasured = dict.fromkeys(base, 0)
        self._discarded = 0
        self._step = Step(optimizer, self._writer, self._ages)
        self._by_hand = False
        self._asked = False  # whether the policy has decided a step that is not taken yet
        self._shown = False
        self._plan: Plan | None = None  # of the step that this observation is for
        self._arriving: Staged | None = None  # staged while an optimizer state is loading
        self._guard = Guard()
        self._handles: list[RemovableHandle] = []
        self.attach()

    def observe(
        self,
        target: Tensor,
        /,
        *,
        mask: Tensor | None = None,
        **modalities: tuple[Tensor, Tensor],
    ) -> None:
        """Measure a batch: call it once per forward, before `optimizer.step()`.

        Args:
            target: what the loss compares the logits with. Class ids of -100 do not count.
            mask: true where a sample, or a token, counts; all do by default.
            modalities: (features, logits) of each modality's own head. One may be absent.
        """
        if not modalities and not self._pool.ever_observed:
            raise ValueError(
                "observe was given no modality, and none before; write observe(target, "
                "audio=(features, logits)), or give VCMM the heads to read them from"
            )
        self._settle()
        self._require_hooks()
        if self._guard.step_was_skipped():
            self.discard()
        self._require_known(modalities)
        # All of them before any is added: an error must not leave half an observation.
        for modality, batch in batches_of(modalities, target, self.loss, mask).items():
            self._pool.streams[modality].add(batch)
        groups = tagged(self.optimizer)
        self._pool.device = _device_of(groups)
        self._plan = self._planned(groups)
        self._guard.note_gradient(self.optimizer)

    @property
    def betas(self) -> dict[str, float]:
        """Every modality's current momentum."""
        self._settle()
        return {m: float(self._betas.get(m, base)) for m, base in self._base().items()}

    def metrics(self) -> dict[str, float]:
        """A flat dict of floats to log: audio/beta, audio/R, audio/Q, audio/rho, audio/gain, ...

        audio/unmeasured counts the observed steps in which audio could not be measured, discarded
        the times that observations were dropped because their step was not taken.
        """
        metrics = {f"{modality}/beta": beta for modality, beta in self.betas.items()}
        metrics.update(self.policy.metrics())
        for modality, count in self._unmeasured.items():
            metrics[f"{modality}/unmeasured"] = float(count)
        metrics["discarded"] = float(self._discarded)
        return metrics

    @contextmanager
    def applied(self) -> Generator[None]:
        """Do by hand what the hooks do, around a compiled or captured `optimizer.step`."""
        self._require_hooks()
        self._begin()
        self._by_hand = True
        try:
            yield
        except BaseException:
            self._settle()
            raise
        finally:
            self._by_hand = False
        self._finish()

    def discard(self) -> None:
        """Drop what was observed since the last step, when that step is not going to be taken."""
        if self._pool:
            self._discarded += 1
        self._pool.discard()
        self._plan = None
        self._guard.forget_gradient()

    def attach(self, optimizer: Optimizer | None = None) -> None:
        """Register the hooks, again if need be, or on another optimizer with the same groups."""
        self._settle()
        self._unhook()
        if optimizer is not None:
            self._move_to(optimizer)
        hooked = self.optimizer
        first = hooked.register_step_pre_hook(self._before_step)
        _require_alone(first)
        self._catch_up()
        self._handles = [
            first,
            hooked.register_step_post_hook(self._after_step),
            hooked.register_state_dict_pre_hook(self._before_save),
            hooked.register_state_dict_post_hook(self._after_save),
            hooked.register_load_state_dict_pre_hook(self._before_load),
            hooked.register_load_state_dict_post_hook(self._after_load),
        ]
        self._take_stock()

    def _move_to(self, optimizer: Optimizer) -> None:
        require_same(signature(self.optimizer.param_groups), optimizer.param_groups)
        ages = self._ages.state_dict(self.optimizer.param_groups)
        self._writer = Writer(binding_of(optimizer))
        self._ages.load_state_dict(ages, optimizer.param_groups)
        self._step = Step(optimizer, self._writer, self._ages)
        self.optimizer = optimizer
        require_served(optimizer, tagged(optimizer))

    def detach(self) -> None:
        """Remove every hook and leave the optimizer as it was."""
        self._settle()
        self._unhook()
        self._pool.discard()

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for group in self.optimizer.param_groups:
            group.pop(_BETA, None)

    def state_dict(self) -> dict[str, Any]:
        """All that must survive a restart. It also travels inside the optimizer's state_dict."""
        self._settle()
        state = {
            "groups": signature(self.optimizer.param_groups),
            "ages": self._ages.state_dict(self.optimizer.param_groups),
            "betas": {modality: float(beta) for modality, beta in self._betas.items()},
            "unmeasured": self._unmeasured,
            "discarded": self._discarded,
            "pool": self._pool.state_dict(),
            "policy": self.policy.state_dict(),
        }
        return write(state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave. Nothing is changed if it does not fit."""
        self._settle()
        self._load(self._staged(state_dict))

    def _staged(self, state_dict: Mapping[str, Any]) -> Staged:
        return stage(state_dict, self.optimizer.param_groups, self._pool, self.policy)

    def _load(self, staged: Staged) -> None:
        self._ages = self._step.ages = staged.ages
        self._pool.streams = staged.streams
        self._betas = staged.betas
        self._unmeasured = staged.unmeasured
        self._discarded = staged.discarded
        self._asked = False
        self.policy.load_state_dict(staged.policy)
        self._guard.forget_gradient()
        self._take_stock()

    # The step

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if self._by_hand:
            if closure is not None:
                raise RuntimeError(
                    "inside applied() the gradients must exist already; call optimizer.step() "
                    "without a closure, or leave applied() out"
                )
            return None
        if closure is not None:
            return after_closure(closure, self._begin, args, kwargs)
        self._begin()
        return None

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._by_hand:
            self._finish()

    def _begin(self) -> None:
        """Close what was observed, ask the policy, and write its answer into the groups."""
        self._settle()
        self._guard.forget_gradient()
        groups = tagged(self.optimizer)
        plan, self._plan = self._plan, None
        if plan is not None and self._stands(plan, groups):
            answer = self.policy.update(plan.probes, plan.base)
            if answer == plan.betas:
                self._follow(plan)
            else:  # it said another thing ahead
                self._write(answer, groups, plan.base, on_device=False)
            return
        base = base_momenta(self._writer.binding, groups)
        if self._asked and not self._pool:  # a step that raised and is tried again, or a subclass's
            self._step.write(self._betas, base, exact=self.exact)  # that calls its parent's
            return
        if not self._pool:
            if self._step.rehearse():
                return
            self._pool.device = _device_of(groups)
        self._pool.open(base)
        on_device = self._on_device(groups)
        probes = self._measure(on_device)
        if probes is None:
            return
        self._write(self.policy.update(probes, base), groups, base, on_device=on_device)

    def _write(
        self,
        answer: Mapping[str, Number],
        groups: list[Group],
        base: Mapping[str, Number],
        *,
        on_device: bool,
    ) -> None:
        """Do what the policy says."""
        self._betas = checked(type(self.policy).__name__, answer, base, on_device)
        self._asked = self._shown = True
        self._show_betas(groups, base)
        self._step.write(self._betas, base, exact=self.exact)

    def _planned(self, groups: list[Group]) -> Plan | None:
        """The coming step, if what was observed is likely to be all, and tells enough."""
        on_device = self._on_device(groups)
        probes = self._pool.anticipate(on_device=on_device)
        if probes is None:
            return None
        base = base_momenta(self._writer.binding, groups)
        answer = self.policy.anticipate(probes, base)
        if answer is None or probes.keys() != self._pool.streams.keys():
            return None
        betas = checked(type(self.policy).__name__, answer, base, on_device)
        parts = parts_of(groups, self._writer, self._ages, betas, base, exact=self.exact)
        return None if parts is None else Plan(probes, base, betas, parts)

    def _stands(self, plan: Plan, groups: list[Group]) -> bool:
        """Whether nothing has come between; then what was observed counts as measured."""
        return (
            getattr(self.optimizer, "found_inf", None) is None  # a fused kernel may skip the step
            and self._step.holds(plan.parts, groups)
            and self._pool.take(plan.probes)
        )

    def _follow(self, plan: Plan) -> None:
        """Do what the policy said ahead."""
        self._betas = plan.betas
        self._asked = self._shown = True
        for part in plan.parts:
            part.group[_BETA] = part.beta
        self._step.follow(plan.parts)

    def _settle(self) -> None:
        """Undo what a step that raised has left behind."""
        if self._step.open:
            if self._step.abandon():
                self._asked = False
            self._guard.watch(self.optimizer)

    def _finish(self) -> None:
        self._step.finish()
        self._asked = False
        self._guard.watch(self.optimizer)

    def _measure(self, on_device: bool) -> dict[str, Probe] | None:
        """The step's probes; None if a fused kernel is going to skip it for an overflow.

        One copy from device to host for all modalities together; none if the step is capturable.
        """
        probes = self._pool.measure()
        if on_device:
            self._pool.keep_measurable()
        else:
            found_inf: Tensor | None = getattr(self.optimizer, "found_inf", None)
            flags = [] if found_inf is None else [found_inf.double().reshape(())]
            probes, overflowed = on_host(probes, flags)
            if any(overflowed):
                self._discarded += self._pool.observed
                self._step.seed()
                return None
        self._pool.remember(probes)
        if self._pool.observed:
            for modality in self._pool.streams:
                if modality not in probes:
                    self._unmeasured[modality] = self._unmeasured.get(modality, 0) + 1
        return probes

    # What is read off the optimizer

    def _base(self) -> dict[str, Number]:
        return base_momenta(self._writer.binding, tagged(self.optimizer))

    def _on_device(self, groups: list[Group]) -> bool:
        return any(map(self._writer.binding.on_device, groups))

    def _show_betas(self, groups: list[Group], base: Mapping[str, Number]) -> None:
        """Show loggers the momenta, from the first step on: a fresh optimizer must look it."""
        if not self._shown:
            return
        for group in groups:
            group[_BETA] = self._betas.get(group["modality"], base[group["modality"]])

    def _take_stock(self) -> None:
        """Begin anew with what the optimizer holds now."""
        groups = tagged(self.optimizer)
        self._show_betas(groups, base_momenta(self._writer.binding, groups))
        self._guard.watch(self.optimizer)

    def _require_known(self, modalities: Iterable[str]) -> None:
        for modality in modalities:
            if modality in self._pool.streams:
                continue
            base = self._base()
            if modality not in base:
                raise ValueError(
                    f"modality {modality!r} is carried by no parameter group; the groups carry "
                    f"{', '.join(base)}. Rename it, or claim its parameters in modal_groups"
                )
            self._pool.open(base)  # its group was added after the controller

    def _require_hooks(self) -> None:
        handle = self._handles[0] if self._handles else None
        if handle is None or handle.id not in (handle.hooks_dict_ref() or ()):
            raise ValueError(
                f"the controller of {', '.join(self._pool.streams)} has no hook on its optimizer, "
                "so nothing would come of this; call attach() after detach(), or after the "
                "optimizer was replaced"
            )
        if not self._guard.has_seen_all(self.optimizer):
            self._catch_up()
            raise RuntimeError(
                "the optimizer took a step that the controller's hooks did not see, as a compiled "
                "or captured step may; write: with controller.applied(): compiled_step(). Or its "
                "state was loaded past the hooks, as bitsandbytes does; write behind it: "
                'controller.load_state_dict(saved["vcmm"]), with the saved optimizer state'
            )

    def _catch_up(self) -> None:
        self._ages.catch_up(tagged(self.optimizer), self.optimizer.state, self._base())

    # Saving and loading

    def _before_save(self, optimizer: Optimizer) -> None:
        self._settle()

    def _after_save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict[_KEY] = self.state_dict()
        for group in state_dict["param_groups"]:  # not a setting, so not for another optimizer
            group.pop(_BETA, None)

    def _before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        self._settle()
        state_dict = dict(state_dict)
        record = state_dict.pop(_KEY, None)
        self._arriving = None if record is None else self._staged(record)
        state_dict["param_groups"] = fitting_groups(
            state_dict["param_groups"], optimizer.param_groups
        )
        return state_dict

    def _after_load(self, optimizer: Optimizer) -> None:
        staged, self._arriving = self._arriving, None
        if staged is not None:
            self._load(staged)
        else:
            self._ages.reconcile(optimizer.state)
            self._take_stock()

    def __getstate__(self) -> dict[str, Any]:
        """For deepcopy and pickle. Hooks cannot be copied; `__setstate__` registers new ones."""
        return {**self.__dict__, "_handles": [], "_guard": Guard(), "_plan": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._step.undo()  # of a step that had raised before the copy was made
        self.attach()


def _device_of(groups: list[Group]) -> torch.device:
    return next(p.device for group in groups for p in group["params"])


def _require_alone(handle: RemovableHandle) -> None:
    """Two controllers would each undo what the other writes."""
    hooks = cast(Mapping[int, Any], handle.hooks_dict_ref())
    owners = (getattr(hook, "__self__", None) for key, hook in hooks.items() if key != handle.id)
    for other in owners:
        if isinstance(other, MomentumController):
            handle.remove()
            raise ValueError(
                f"this optimizer has a controller already, of {', '.join(other.betas)}; give it "
                "one policy for all modalities, or detach() the other controller first"
            )
