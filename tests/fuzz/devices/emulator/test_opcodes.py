"""Numbers of micro-operations."""

from fuzz.devices.emulator import opcodes as op


def test_no_two_micro_operations_have_one_number() -> None:
    numbers = {name: value for name, value in vars(op).items() if name.isupper() and op.BASE <= value < op.BASE + 100}
    assert len(numbers) > 40 and len(set(numbers.values())) == len(numbers) - 1  # BASE itself is BRANCH
