"""The project that the demo's agent works on."""


def total(numbers):
    """The sum of the numbers."""
    return sum(numbers)
