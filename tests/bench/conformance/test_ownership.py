"""Every trainable parameter is in exactly one group of an optimizer, and is really trained."""

from __future__ import annotations

from collections import Counter

from ..toys import built, events, tiny
from .cases import every_method, every_number


@every_method
@every_number
def test_no_parameter_is_orphaned(name: str, modalities: int) -> None:
    spec = tiny(modalities, method=name, controller="vcmm", epochs=2 * modalities + 1)
    training = built(spec)
    method = training.method
    before = {parameter: parameter.detach().clone() for parameter in method.parameters()}
    for _ in events(training, spec):
        optimizers = [method.optimizer, *method.others.values()]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        grouped = Counter(parameter for group in groups for parameter in group["params"])
        for parameter in method.parameters():
            if parameter.requires_grad:
                # One that a method has grown on the way starts from what it is now.
                before.setdefault(parameter, parameter.detach().clone())
                assert grouped[parameter] == 1
    still = [
        label
        for label, parameter in method.named_parameters()
        if parameter.requires_grad and parameter.equal(before[parameter])
    ]
    assert still == []


@every_method
@every_number
def test_what_belongs_to_a_modality_is_in_its_group(name: str, modalities: int) -> None:
    method = built(tiny(modalities, method=name)).method
    groups = {group["modality"]: set(group["params"]) for group in method.optimizer.param_groups}
    assert groups.keys() - {None} == set(method.model.modalities)
    for modality, encoder in method.model.encoders.items():
        assert set(encoder.parameters()) <= groups[modality]
