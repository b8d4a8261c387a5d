"""The forms that can be fitted, by name."""

import difflib
from collections.abc import Mapping, Sequence

import numpy as np

from allocator.errors import FitError
from allocator.fitting import joint, link, pretraining, rl, test_time
from allocator.fitting.form import Form

FORMS: Mapping[str, Form] = {
    form.name: form
    for form in (
        pretraining.CHINCHILLA,
        pretraining.GADRE,
        pretraining.DATA_CONSTRAINED,
        rl.rl_power((1.0,)),
        rl.RL_SIGMOID,
        rl.RL_SATURATING,
        test_time.PASS_POWER,
        test_time.PASS_AT_K,
        test_time.BETA_BINOMIAL,
        test_time.T2_LOSS,
        link.LOSS_TO_ERROR,
        joint.PRODUCT,
        joint.ADDITIVE,
        joint.SHARED,
        joint.COVERAGE,
        joint.with_overlap(joint.PRODUCT),
        joint.with_overlap(joint.SHARED),
        joint.with_overlap(joint.COVERAGE),
    )
}


def find(name: str) -> Form:
    """A form by name; `for_sizes` makes it ready for a table."""
    if name not in FORMS:
        near = difflib.get_close_matches(name, FORMS)
        hint = f"did you mean {' or '.join(near)}?" if near else f"must be one of {', '.join(FORMS)}"
        raise FitError("law", f"{name!r} cannot be fitted; {hint}")
    return FORMS[name]


def for_sizes(form: Form, sizes: Sequence[float] | np.ndarray) -> Form:
    """The form with a level for each model size, where it has such levels."""
    return rl.rl_power(tuple(float(size) for size in np.unique(sizes))) if form.sizes else form
