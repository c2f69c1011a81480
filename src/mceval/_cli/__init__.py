"""discode mceval: build a benchmark of human preferences, from folders of images to a dataset."""

from __future__ import annotations

import typer

from mceval._cli import annotate, people, preparing, results, running

app = typer.Typer(
    help="Build a benchmark of human preferences.", no_args_is_help=True, add_completion=False
)

app.command("plan")(preparing.plan)
app.command("init")(preparing.init)
app.command("candidates")(preparing.candidates)
app.add_typer(people.app, name="people")
app.command("images")(running.images)
app.command("annotate")(annotate.annotate)
app.command("tasks")(running.tasks)
app.command("import")(running.import_answers)
app.command("status")(running.status)
app.command("backup")(results.backup)
app.command("study")(results.study)
app.command("export")(results.export)
