"""The experiments of the four papers, and our evaluation of their theory; a module is a family of figures."""
