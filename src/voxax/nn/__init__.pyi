from . import functional as functional
from . import modules as modules
