"""Whatever is typed as a name, the answer is a model, data, or one clear line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spherometer.zoo import DataError, ModelError, WeightsError, build_model, load_data, load_weights

TYPED = st.text(max_size=60) | st.text("abc:./-_ \n\0", max_size=12) | st.just("x" * 5000)
QUIET = settings(max_examples=150, deadline=None, derandomize=True)


def message_of(action, kind):
    try:
        action()
    except kind as error:
        return str(error)
    return "fine"


@given(name=TYPED)
@QUIET
def test_any_data_name(name):
    assert "\n" not in message_of(lambda: load_data(name, root="no-such-folder"), DataError)


@given(name=TYPED)
@QUIET
def test_any_model_name(name):
    assert "\n" not in message_of(lambda: build_model(name), ModelError)


@given(name=TYPED)
@QUIET
def test_any_name_of_weights(name):
    assert "\n" not in message_of(lambda: load_weights(build_model("digits-linear"), name), WeightsError)


def test_the_helper_lets_other_errors_through():
    with pytest.raises(ZeroDivisionError):
        message_of(lambda: 1 / 0, ValueError)
