"""The example scripts run as a user would run them, shortened."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

SCRIPTS = {
    "toy_gaussian.py": ["--draws", "200", "--methods", "PM MH,SS+SS"],
    "black_box.py": ["--draws", "50", "--tune", "50", "--methods", "SS+SS"],
    "ising.py": ["--draws", "40", "--tune", "5", "--chains", "2", "--methods", "PM MH,exchange"],
    "autologistic.py": ["--draws", "100", "--tune", "100", "--methods", "SS+SS,exchange"],
    "gp_classification.py": [
        *("--data", "breast", "--draws", "20", "--tune", "20"),
        *("--methods", "PM MH published,SS+MH"),
    ],
    "glmm.py": ["--draws", "300", "--tune", "300", "--methods", "SS+SS,PM MH,SS+NUTS"],
}
"""Each with options that make it short; ``--save`` and, where there is one, a figure are added."""

TABLES = {
    "defaults.py": ["--only", "toy Gaussian,README", "--methods", "default,ellipse,SS+SS of old"],
    "scaling.py": ["--only", "10", "--methods", "default,uniform u slice,NUTS on the joint model"],
}
"""Scripts that measure: they save one record for each model, method and seed."""


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_runs(script, tmp_path):
    records = tmp_path / "records.json"
    command = [sys.executable, str(EXAMPLES / script), *SCRIPTS[script], "--save", str(records)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    methods = SCRIPTS[script][SCRIPTS[script].index("--methods") + 1].split(",")
    assert {record["method"] for record in json.loads(records.read_text())["records"]} >= set(
        methods
    )
    figures = list(tmp_path.glob("*.png"))
    assert len(figures) == ("figure" in (EXAMPLES / script).read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "methods"),
    [
        ("silently_biased.py", "chain"),
        ("nuts_step_sizes.py", "chain"),
        ("abc_beside_smc.py", "apm.estimators.abc,pm.sample_smc"),
    ],
)
def test_a_small_study_runs(script, methods, tmp_path):
    short = ["--draws", "20", "--tune", "20", "--chains", "2", "--methods", methods]
    command = [sys.executable, str(EXAMPLES / script), *short, "--save", "saved.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "saved.json").read_text())
    assert saved["records"] and saved["made_by"][0]["settings"]["draws"] == 20


@pytest.mark.slow
@pytest.mark.parametrize("script", TABLES)
def test_a_table_is_measured_and_printed_again(script, tmp_path):
    def run(*options):
        command = [sys.executable, str(EXAMPLES / script), *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    quick = [*TABLES[script], "--quick", "--save", "saved.json"]
    first = run(*quick, "--seeds", "1")
    run(*quick, "--seeds", "2,3")
    saved = json.loads((tmp_path / "saved.json").read_text())["records"]
    records = [record for record in saved if "seed" in record]
    assert 0 < len(saved) - len(records) < 20  # rows of a table of the documentation
    assert sorted({record["seed"] for record in records}) == [1, 2, 3]
    assert all(record["draws"] == 20 and record["evals"] >= 20 for record in records)
    assert all(0.0 < record["seconds"] < 60.0 for record in records)
    again = run("--table", "saved.json")
    for method in TABLES[script][-1].split(","):
        assert sum(record["method"] == method for record in records) == len(records) / 3
        assert method in first and method in again
    assert (tmp_path / "scaling.png").exists() == (script == "scaling.py")
