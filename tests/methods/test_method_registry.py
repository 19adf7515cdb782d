import pytest

from classmargin.methods import (
    Method,
    create,
    default_hyperparameters,
    list_methods,
    method_info,
    methods_table_markdown,
    requirements_of,
)
from classmargin.methods.method_registry import MethodInfo, register, resolve_hyperparameters

NAMES = """
erm lff jtt eql ldam ldam-drw supcon drl csr group-dro fair-dro sam center lgm cmic balanced-softmax
logit-adjustment focal class-balanced mr2 mr2-logit mr2-representation mr2-uniform mr2-zero-spread mr2-la
""".split()  # noqa: SIM905 (reads like the list it is)


def test_the_promised_names_are_there_in_their_order():
    assert [info.name for info in list_methods() if info.name in NAMES] == NAMES


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"method must be one of erm.*got 'groupdro' \(did you mean 'group-dro'\?\)"):
        method_info("groupdro")


def test_unknown_hyperparameter_suggests_the_nearest(make):
    with pytest.raises(ValueError, match=r"method ldam has no hyper-parameter 'scal'.*did you mean 'scale'"):
        make("ldam", scal=1.0)


def test_unknown_preset_lists_the_known(make):
    with pytest.raises(
        ValueError, match=r"preset of sam must be one of cifar10, cifar100, imagenet, adaptive; got 'cifar'"
    ):
        make("sam", preset="cifar")


def test_unknown_inner_method_of_sam_is_refused():
    with pytest.raises(ValueError, match="got 'emr'"):
        requirements_of("sam+emr")


def test_registering_a_name_twice_is_refused():
    info = MethodInfo("erm", "again", "nobody", "baseline", "nothing")
    with pytest.raises(ValueError, match="'erm' is registered twice"):
        register(info)(Method)


def test_explicit_hyperparameters_win_over_the_preset():
    resolved = resolve_hyperparameters("lgm", preset="tensorflow", margin=0.7)
    assert (resolved["margin"], resolved["likelihood_weight"]) == (0.7, 0.01)


def test_requirements_see_the_preset_and_the_hyperparameters():
    assert requirements_of("supcon", views=1).views == 1
    assert requirements_of("sam+supcon", rho=0.1).views == 2


def test_combination_costs_both_and_keeps_presets():
    combined = method_info("sam+lff")
    assert combined.cost == 4.0
    assert combined.title == "SAM + LfF"
    assert {"formula", "cifar100", "adaptive"} <= set(combined.presets)
    assert {"rho", "q"} <= set(combined.search)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sam"])
def test_hyperparameters_of_sam_never_collide_with_the_inner_ones(name):
    assert not set(default_hyperparameters(name)) & set(default_hyperparameters("sam"))


@pytest.mark.parametrize("info", list_methods(), ids=lambda info: info.name)
def test_info_record_is_complete_and_consistent(info):
    defaults = default_hyperparameters(info.name)
    assert info.paper
    assert info.summary.endswith(".")
    assert set(info.search) <= set(defaults)
    for name, values in info.search.items():
        numbers = [value for value in values if isinstance(value, (int, float))]  # a range ends with the word "log"
        assert min(numbers) <= defaults[name] <= max(numbers), f"{name}={defaults[name]} is outside {values}"
    assert set(info.fixed) <= set(defaults)
    for name, preset in info.presets.items():
        assert set(preset) <= set(defaults), name
    assert info.cost >= 1


@pytest.mark.parametrize("info", list_methods(), ids=lambda info: info.name)
def test_every_card_has_the_same_headings(info):
    card = type(create_any(info.name)).__doc__
    for heading in ("Idea:", "Use:", "Hyper-parameters:", "Cost:", "Caveats:", "Source:"):
        assert heading in card, heading


# The hyper-parameters of MR² are described by MR2Loss.
BASELINES = [info for info in list_methods() if info.family != "ours"]


@pytest.mark.parametrize("info", BASELINES, ids=lambda info: info.name)
def test_card_names_every_hyperparameter(info):
    card = type(create_any(info.name)).__doc__
    for name in default_hyperparameters(info.name):
        assert f"``{name}``" in card or f"``{name}=" in card, name


def create_any(name):
    import torch
    from torch import nn

    from classmargin.methods import TaskInfo

    labels = torch.tensor([0, 1, 2])
    task = TaskInfo(3, 2, torch.ones(3, dtype=torch.long), labels, new_model=lambda: nn.Linear(2, 3))
    return create(name, task)


def test_table_has_one_row_per_method():
    lines = methods_table_markdown().splitlines()
    assert len(lines) == 2 + len(list_methods())
    assert len({line.count(" | ") for line in lines if "---" not in line}) == 1
    row = next(line for line in lines if line.startswith("| `lff` "))
    assert "sample index, second network" in row
