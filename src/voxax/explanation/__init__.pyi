from .inspect import explain as explain
from .inspect import tune as tune
from .report import Report as Report
from .size_strategies import strategies as strategies
