"""Whether agent servers give what a training needs: one finding a line, and what to do about each that is bad.

>>> from turnloom.doctor import examine
>>> examination = await examine({"math": "http://127.0.0.1:8001"}, row=row)  # doctest: +SKIP
>>> [finding.name for finding in examination.findings if finding.verdict == "bad"]  # doctest: +SKIP
['token ids']
"""

from turnloom.doctor._examination import Examination, examine
from turnloom.doctor._findings import Finding, Verdict

__all__ = ["Examination", "Finding", "Verdict", "examine"]
