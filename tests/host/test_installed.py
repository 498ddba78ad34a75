"""Versions of the packages that training needs."""

from __future__ import annotations

import pytest

from trainworks.errors import EnvironmentProblem
from trainworks.host.installed import check_versions


def test_a_package_that_is_too_old_is_named_with_what_is_needed() -> None:
    with pytest.raises(
        EnvironmentProblem, match=r"`torch` 2\.0\.1 is installed, and `torch>=2\.\d+` is needed"
    ) as caught:
        check_versions({"torch": "2.0.1", "numpy": "2.4.6"}, "train")
    assert caught.value.hint == "pip install --upgrade 'trainworks[train]'"


def test_new_local_and_unknown_versions_pass() -> None:
    check_versions({"torch": "2.14.0+cu130", "numpy": "2.4.6", "another": "0.1"}, "train")
