"""An experiment of a paper = runs + figure + claims."""

from spherometer.recipes.perform import perform
from spherometer.recipes.recipe import (
    SCALES,
    Experiment,
    Recipe,
    Scale,
    Table,
    at_scale,
    find_recipe,
    recipe,
    recipes,
    variant,
)
from spherometer.recipes.results import Results, Run, training_run

__all__ = [
    "SCALES",
    "Experiment",
    "Recipe",
    "Results",
    "Run",
    "Scale",
    "Table",
    "at_scale",
    "find_recipe",
    "perform",
    "recipe",
    "recipes",
    "training_run",
    "variant",
]
