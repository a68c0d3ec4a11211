from .program import Program as Program
from .program import Result as Result
from .program import export_program as export_program
from .program import load_program as load_program
