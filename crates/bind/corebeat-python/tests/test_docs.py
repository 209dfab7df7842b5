"""The examples of the book's page run, in order."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.strip().splitlines()[0])
def test_example_runs(code, tmp_path):
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_page_has_examples():
    assert len(BLOCKS) >= 3
