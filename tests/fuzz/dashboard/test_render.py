"""Small pictures, waits, commands and scripts."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import dashboard_ledger as made
import msgspec
import pytest

from fuzz.core.case import Case, Inputs
from fuzz.core.verdict import Verdict
from fuzz.corpus.store import load_before, load_case
from fuzz.dashboard.collect.bugs import _bounded
from fuzz.dashboard.model import Site
from fuzz.dashboard.render.case_picture import PICTURES, case_picture
from fuzz.dashboard.render.filters import days, linked, moment, shorten
from fuzz.dashboard.render.heat_map import colour
from fuzz.dashboard.render.mask_svg import mask_svg
from fuzz.dashboard.render.pages import pages
from fuzz.dashboard.render.reproduce import command, script
from fuzz.dashboard.render.rows import Row
from fuzz.dashboard.render.sparkline import sparkline
from fuzz.dashboard.render.waits import waits
from fuzz.judging.operations import OPERATIONS
from oracles.masks import Causal, Full, Tokens, TopK, Window
from oracles.native_sparse.problem import NativeSparse
from oracles.problem import Problem


def item(site: Site, uid: str, **changed: Any) -> Any:
    return msgspec.structs.replace(next(one for one in site.signatures if one.uid == uid), **changed)


def test_a_mask_is_drawn_as_runs_of_kept_tokens() -> None:
    svg = str(mask_svg(Problem((3,), (3,), 1, 1, 8, 8, "float32", mask=Causal())))
    assert 'class="full" d="M0 0h1v1h-1zM0 1h2v1h-2zM0 2h3v1h-3z"' in svg
    assert "mask causal, 3 queries by 3 keys; 67% kept" in svg


def test_a_large_mask_is_drawn_in_tiles() -> None:
    svg = str(mask_svg(Problem((4096,), (4096,), 1, 1, 8, 8, "float32", mask=Window(512, 0))))
    assert 'viewBox="0 0 64 64"' in svg and len(svg) < 5000
    assert 'class="few" d="M' in svg or 'class="most" d="M' in svg


def test_each_operation_has_a_picture() -> None:
    assert set(PICTURES) == set(OPERATIONS)


def test_blocks_of_native_sparse_attention_are_drawn_as_its_numbers_select_them() -> None:
    p = NativeSparse(
        (64,), 1, 1, 16, "bfloat16", compress_block_size=16, num_selected_blocks=1, window_size=8, q_tile=32
    )
    svg = str(case_picture(Case("nsa", p, Inputs(3)), 0, 0))
    assert 'viewBox="0 0 4 2"' in svg and "64 tokens in 2 tiles of 32 queries by 4 blocks" in svg
    full = svg.split('class="full" d="')[1].split('"')[0]
    assert full.count("M") == 2  # a block for each of two tiles
    assert "not drawn" in str(case_picture(Case("nsa", p.edited(lengths=(0,)), Inputs(3)), 0, 0))


def test_a_mask_of_the_largest_scores_is_drawn() -> None:
    p = Problem((70,), (70,), 2, 1, 32, 32, "bfloat16", mask=TopK(8))
    svg = str(case_picture(Case("dynamic_mask", p, Inputs(3)), 0, 1))
    assert svg.startswith("<svg") and "70 queries by 70 keys" in svg


def test_a_mask_without_pairs_is_words() -> None:
    assert "no pairs" in mask_svg(Problem((0,), (5,), 1, 1, 8, 8, "float32", mask=Full()))


def test_a_night_without_a_failure_is_no_bar() -> None:
    svg = str(sparkline((("n1", 0.0), ("n2", 0.5), ("n3", 0.25))))
    assert 'class="hit" d="M5 22v-22h4v22zM10 22v-12h4v12z"' in svg  # as high as its share, of the highest
    assert 'class="miss" d="M0 22v-1h4v1z"' in svg
    assert "met in 2 of 3 nights" in svg


def test_waits_of_a_deadlock_are_rows() -> None:
    first, second = waits(made.REPORT)
    assert (first.who, first.what, first.now, first.wanted) == (
        "CTA (2, 0, 0) warp 1",
        "semaphores[b 0, h 0, m 3]",
        "0",
        "2",
    )
    assert first.where.startswith("PTX line 3519")
    assert second.what == "at barrier 0, where 224 of 256 threads have arrived"


def test_the_command_writes_a_case_that_repro_reads(site: Site, tmp_path: Path) -> None:
    """Run by a shell, with everything but the last line, which runs the case."""
    bug = item(site, made.NEW.id)
    text = command(bug)
    subprocess.run(["sh", "-c", text.rpartition("\n")[0]], cwd=tmp_path, check=True)
    (file,) = tmp_path.iterdir()
    assert load_case(str(file)) == msgspec.convert(bug.case, Case)
    assert text.rpartition("\n")[2] == f"attnfuzz repro {file.name}"
    assert "<" not in file.name and "`" not in file.name


def test_the_command_names_files_of_targets_that_are_not_the_packages_alone(site: Site) -> None:
    assert command(item(site, made.NEW.id), ("own.py",)).endswith(" --target-file own.py")
    assert not command(item(site, made.OLD.id), ("own.py",)).endswith("own.py")


def test_cases_that_have_to_run_before_are_in_the_command(site: Site, tmp_path: Path) -> None:
    bug = item(site, made.OLD.id)
    bug = msgspec.structs.replace(bug, after=(bug.case,))
    subprocess.run(["sh", "-c", command(bug).rpartition("\n")[0]], cwd=tmp_path, check=True)
    (file,) = tmp_path.iterdir()
    assert load_before(str(file)) == (msgspec.convert(bug.case, Case),)


def test_a_flaky_case_is_run_often(site: Site) -> None:
    assert command(item(site, made.FLAKY.id)).endswith(" --runs 20")


def test_the_script_is_python_without_the_harness(site: Site) -> None:
    text, why = script(item(site, made.OLD.id))
    assert not why
    compile(text, "bug.py", "exec")
    assert "fuzz" not in text.replace("attnfuzz", "")


def test_a_target_that_is_not_known_here_has_no_script(site: Site) -> None:
    text, why = script(item(site, made.NEW.id))
    assert not text and "--target-file" in why


def test_an_id_that_is_no_number_makes_no_path(site: Site) -> None:
    bug = msgspec.structs.replace(item(site, made.OLD.id), uid="../../x")
    assert len(Row(bug).name) == 8 and Row(bug).name.isalnum()


def test_evidence_is_cut(site: Site) -> None:
    verdict = Verdict("c", "crash", evidence={"stderr": "x" * 100_000, "gpu": {"busy": 1}}, seconds={"run": 1.0})
    found = _bounded(verdict)
    assert len(found["evidence"]["stderr"]) < 7000 and '"busy": 1' in found["evidence"]["gpu"]
    assert "seconds" not in found


def test_a_mask_at_random_is_drawn_in_fewer_tiles() -> None:
    draw = random.Random(0)
    tokens = Tokens(tuple("".join(draw.choice("01") for _ in range(200)) for _ in range(200)))
    assert len(mask_svg(Problem((200,), (200,), 1, 1, 8, 8, "float32", mask=tokens))) < 8000


def test_a_long_command_is_on_the_page_alone(site: Site) -> None:
    bug = item(site, made.OLD.id)
    long = msgspec.structs.replace(bug, case={**bug.case, "variant": {"x": "y" * 2000}})
    assert Row(long).command and not Row(long).short_command
    assert Row(bug).short_command == Row(bug).command


def test_signatures_without_a_case_have_a_page(site: Site) -> None:
    bug = item(site, made.OLD.id, case=None, evidence=None, message="")
    news = msgspec.structs.replace(site.news, new=(), regressed=(), fixed=())
    _, made_ = pages(msgspec.structs.replace(site, news=news, signatures=(bug,)))
    found = {page.path: page.text for page in made_}
    assert "did not keep the case" in found[f"signature/{bug.uid}.html"]


@pytest.mark.parametrize(("cases", "failed", "expected"), [(10, 0, "#9ecae1"), (1000, 1, "#fee391"), (2, 2, "#993404")])
def test_colours_of_the_heat_map(cases: int, failed: int, expected: str) -> None:
    assert colour(cases, failed) == expected


def test_words() -> None:
    assert moment("2026-11-23T02:10:00Z") == "2026-11-23 02:10" and moment("") == "an unknown time"
    assert (days(0.1), days(1.0), days(12.4)) == ("2 h", "1 day", "12 days")
    assert shorten("abcdef", 4) == "abc…"
    assert linked("javascript:alert(1)") == "javascript:alert(1)"
    assert linked("https://x.org/?a=1&b") == '<a href="https://x.org/?a=1&amp;b">https://x.org/?a=1&amp;b</a>'
