"""`ablate studies`: the study files that a name finds, and the reference database."""

from __future__ import annotations

from ablate.cli.render import console, table


def studies() -> None:
    """List the study files here and the examples, with their questions."""
    import tomllib

    from ablate.study import examples

    here = examples.here()
    own = {file.stem for file in here}
    shipped = [file for file in examples.studies() if file.stem not in own]
    rows = []
    for file in (*here, *shipped):
        try:
            question = str(tomllib.loads(file.read_text(encoding="utf-8-sig")).get("question", ""))
        except (OSError, ValueError):
            question = "not a study file: see `ablate plan`"
        rows.append((file.stem, "an example" if file in shipped else str(file), question))
    out = console()
    out.print(table(["study", "file", "question"], rows))
    if shipped:
        out.print(
            "Examples are found by name in any folder. A copy to change: ablate new NAME --from"
            " EXAMPLE",
            markup=False,
        )
    if database := examples.reference():
        out.print(f"Results of the reference studies: ablate status --db {database}", markup=False)
