"""The report of the demo: one HTML file with its drawings inside. It needs no network and no library."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from headrace.cli.demo.drawing import hours, timeline
from headrace.cli.demo.job import QUESTION

if TYPE_CHECKING:
    from headrace.cli.demo.books import Check
    from headrace.cli.demo.day import Truth
    from headrace.cli.demo.play import Story
    from headrace.cli.demo.tally import Tally

_REASONS: Final = 6
_STYLE: Final = """
:root { color-scheme: light dark; --page: #fbfaf7; --card: #ffffff; --ink: #1d2b33; --quiet: #64757f; --line: #e3e6e4;
  --sent: #1f8a9e; --archived: #4667c9; --counted: #c77f1e; --fault: #c8412f; --good: #23805a; --wash: #c8412f1c;
  --cold: #e4f1f2; --warm: #0f5f78; }
@media (prefers-color-scheme: dark) { :root { --page: #10181d; --card: #172229; --ink: #e6eef0; --quiet: #93a5ae;
  --line: #2a383f; --sent: #4cc0cf; --archived: #8ea6f5; --counted: #e5a94f; --fault: #f0705c; --good: #5cc495;
  --wash: #f0705c26; --cold: #1c333c; --warm: #6fd3d6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; margin: 0 0 .25rem; letter-spacing: -.01em; }
h2 { font-size: 1.1rem; margin: 0 0 .25rem; }
p { margin: .25rem 0 1rem; color: var(--quiet); }
p.verdict { font-size: 1.1rem; color: var(--good); font-weight: 600; }
p.verdict.bad { color: var(--fault); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1.25rem 1.4rem;
  margin: 1.1rem 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; margin: 1.4rem 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; letter-spacing: -.01em; }
.tile span { color: var(--quiet); font-size: .85rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--quiet);
  font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .axis { stroke: var(--quiet); stroke-width: 1; }
svg .curve { fill: none; stroke-width: 2.4; stroke-linejoin: round; }
svg .outage { fill: var(--wash); }
svg .cut { stroke: var(--fault); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .fault { fill: var(--fault); font-weight: 600; }
svg .name { fill: var(--ink); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: .2rem 0 .6rem; font-size: .9rem; }
.legend i { display: inline-block; width: 1.1rem; height: 3px; border-radius: 2px; vertical-align: middle;
  margin-right: .45rem; }
ul.checks { list-style: none; margin: .4rem 0 0; padding: 0; }
ul.checks li { padding: .45rem 0 .45rem 1.9rem; position: relative; border-top: 1px solid var(--line); }
ul.checks li:first-child { border-top: 0; }
ul.checks li::before { content: "\\2714"; color: var(--good); position: absolute; left: .2rem; font-weight: 700; }
ul.checks li.bad::before { content: "\\2718"; color: var(--fault); }
ul.checks small, td small { color: var(--quiet); display: block; font-size: .88rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; margin-top: .5rem; }
td, th { text-align: left; padding: .35rem .6rem .35rem 0; border-top: 1px solid var(--line); vertical-align: top; }
th { color: var(--quiet); font-weight: 500; border-top: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.bar { width: 45%; padding-right: 0; }
td.bar div { height: .75rem; margin-top: .35rem; border-radius: 3px; background: var(--sent); }
pre { background: var(--page); border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1rem; overflow-x: auto;
  font: .82rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; margin: .6rem 0 0; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1.1rem; }
.two section { margin: 0; min-width: 0; }
table.events td.number { width: 4.5rem; padding-right: 1rem; }
td.why { overflow-wrap: anywhere; }
"""
_PAGE: Final = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headrace: a day of coffee</title>
<style>$style</style>
</head>
<body><main>
<h1>A day of coffee, killed at half time</h1>
<p>Orders, payments and clicks of five shops through a Headrace broker, rolled up and archived by Spark.</p>
<p class="verdict$bad">$verdict</p>
<div class="tiles">$tiles</div>
<section>
<h2>The stream, the kill and the way back</h2>
<p>Records of the topic <i>orders</i>. In the red field the pipeline was dead, or starting again; the broker kept
what the shops sent, and the pipeline took up exactly where it was.</p>
<div class="legend"><span><i style="background:var(--sent)"></i>sent by the shops</span>
<span><i style="background:var(--archived)"></i>archived in the Delta table</span>
<span><i style="background:var(--counted)"></i>in closed windows of the roll-up</span></div>
$timeline
</section>
<section>
<h2>What Spark made of it</h2>
<p>Takings and orders by the hour of the event, not of its arrival: $late orders came late and are where
they belong.</p>
$hours
</section>
<section><h2>Checked</h2><ul class="checks">$checks</ul></section>
<div class="two">
<section><h2>Asked in SQL</h2><p>Over archived and live records as one table.</p>$products<pre>$question</pre></section>
<section><h2>Put aside</h2><p>$broken orders were broken on the way. None is lost, and each says why.</p>
$reasons</section>
</div>
<section><h2>The pipeline</h2><p>A folder with this <i>pipeline.yml</i>, run by <i>headrace pipeline run</i>.</p>
<pre>$pipeline</pre></section>
<section><h2>What happened</h2><table class="events">$events</table></section>
</main></body></html>
""")


def write(path: Path, story: Story, truth: Truth, tally: Tally) -> None:
    """Write the report; directories are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(story, truth, tally), encoding="utf-8")


def page(story: Story, truth: Truth, tally: Tally) -> str:
    good = all(check.good for check in story.checks)
    away = (story.back_at or 0.0) - (story.killed_at or 0.0)
    said = "Every order was counted exactly once." if good else "The books do not agree: see below."
    return _PAGE.substitute(
        style=_STYLE,
        bad="" if good else " bad",
        verdict=said,
        tiles=_tiles(
            (f"{truth.orders:,}", "orders"),
            (f"{truth.sent.total():,}", f"records in {len(truth.sent)} topics"),
            (f"{truth.cents / 100:,.0f} €", "taken"),
            (f"{away:.1f} s", "without a pipeline"),
            (f"{story.took:.0f} s", "for all of this"),
        ),
        timeline=timeline(story.samples, story.killed_at, story.back_at),
        hours=hours(tally.cells),
        late=f"{truth.late:,}",
        checks="".join(map(_check, story.checks)),
        products=_products(story),
        question=escape(QUESTION),
        broken=f"{truth.broken.total():,}",
        reasons=_reasons(tally),
        pipeline=escape(story.pipeline.rstrip()),
        events="".join(
            f'<tr><td class="number">{at:.1f} s</td><td>{escape(text)}</td></tr>' for at, text in story.events
        ),
    )


def _tiles(*tiles: tuple[str, str]) -> str:
    return "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles)


def _check(check: Check) -> str:
    kind = "good" if check.good else "bad"
    return f'<li class="{kind}">{escape(check.what)}<small>{escape(check.told)}</small></li>'


def _products(story: Story) -> str:
    rows = story.answers.get("products", [])
    most = max((row[2] for row in rows), default=1)
    lines = "".join(
        f'<tr><td>{escape(str(name))}</td><td class="number">{sold:,}</td>'
        f'<td class="number">{cents / 100:,.0f} €</td>'
        f'<td class="bar"><div style="width:{100 * cents / most:.1f}%"></div></td></tr>'
        for name, sold, cents in rows
    )
    head = '<tr><th>product</th><th class="number">sold</th><th class="number">taken</th><th></th></tr>'
    return f"<table>{head}{lines}</table>"


def _reasons(tally: Tally) -> str:
    lines = "".join(
        f'<tr><td class="number">{count}</td><td class="why">{escape(why or "(no reason)")}</td></tr>'
        for why, count in tally.reasons.most_common(_REASONS)
    )
    rest = len(tally.reasons) - _REASONS
    more = f"<tr><td></td><td><small>and {rest} more reasons</small></td></tr>" if rest > 0 else ""
    return f'<table><tr><th class="number">orders</th><th>reason</th></tr>{lines}{more}</table>'
