from .findings import CODES as CODES
from .findings import Finding as Finding
from .findings import Verdict as Verdict
from .static_check import check_static as check_static
from .static_report import Report as Report
