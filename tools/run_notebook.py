#!/usr/bin/env python
"""Run a notebook in a new process and store its outputs in the file."""

import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from inline.utils.errors import OneLineParser, UserError, exit_on_user_error

TIMEOUT_SECONDS = 600


def run_notebook(path: Path) -> Any:
    """Return the notebook with the outputs of a new run; its folder is the working directory."""
    notebook = nbformat.read(path, as_version=4)
    resources = {'metadata': {'path': str(path.resolve().parent)}}
    # Timestamps would change the file at every run.
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_SECONDS,
        kernel_name='python3',
        resources=resources,
        record_timing=False,
        coalesce_streams=True,
    )
    try:
        # Warnings contain paths of this machine.
        return client.execute(env={**os.environ, 'PYTHONWARNINGS': 'ignore'})
    except CellExecutionError as error:
        raise UserError(f'{str(path)!r}: {error.ename}: {error.evalue}') from error


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('notebook', type=Path, help='for example docs/tutorial.ipynb')
    args = parser.parse_args()
    if not args.notebook.is_file():
        raise UserError(f'notebook {str(args.notebook)!r} does not exist')
    nbformat.write(run_notebook(args.notebook), args.notebook)


if __name__ == '__main__':
    with exit_on_user_error():
        main()
