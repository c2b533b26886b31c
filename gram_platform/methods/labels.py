"""Names methods for readers.

What is typed or stored has a method's id, as `gram`: flags, tags, names of nodes, table.csv. What is read has its
label, as GRAM: tables of results in the terminal and on pages, figures, claims.
"""

METHOD_LABELS = {
    "gram": "GRAM",
    "gram_subsets": "GRAM (subsets)",
    "gram_lora": "GRAM (LoRA)",
    "ft_full": "FT-Full",
    "ft_lora": "FT-LoRA",
    "ft_mlp": "FT-MLP",
    "maxent": "MaxEnt",
    "rmu": "RMU",
    "graddiff": "GradDiff",
    "demix": "DEMix",
}


def method_label(method: str) -> str:
    """Returns the label of a method's id; the id for the others, as `filtering` and methods of installed packages."""
    return METHOD_LABELS.get(method, method)
