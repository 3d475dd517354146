"""How much faster turnloom makes training rows of a body than the ways without it, on this machine.

>>> from turnloom.bench import made_body, measure
>>> measurement = measure(made_body("mid"), name="mid")  # doctest: +SKIP
>>> measurement.seconds["json"] / measurement.seconds["turnloom"]  # doctest: +SKIP
67.8
"""

from turnloom.bench._corpus import SHAPES, Shape, made_body
from turnloom.bench._decoders import missing_decoders, versions
from turnloom.bench._measurement import Measurement, measure
from turnloom.bench._table import markdown

__all__ = ["SHAPES", "Measurement", "Shape", "made_body", "markdown", "measure", "missing_decoders", "versions"]
