"""The pictures of the operators' pages: one module per page, one function per picture."""
