"""The look of the page: one style sheet, light and dark, its colours from Okabe and Ito's colour-blind-safe set."""

from __future__ import annotations

from html import escape

__all__ = ["html_page"]

_DARK_ON_LIGHT = "#14171a"
_FILLS = {
    # Step terms and ledger categories: what the accelerators are for is blue and green, what they are not is warm.
    "compute": ("#0072b2", "#ffffff"),
    "communication": ("#56b4e9", _DARK_ON_LIGHT),
    "optimizer": ("#009e73", "#ffffff"),
    "data": ("#8fd3bd", _DARK_ON_LIGHT),
    "checkpoint": ("#f0e442", _DARK_ON_LIGHT),
    "start": ("#e69f00", _DARK_ON_LIGHT),
    "restart": ("#d55e00", "#ffffff"),
    "lost": ("#cc79a7", _DARK_ON_LIGHT),
    "idle": ("#d5d9dd", _DARK_ON_LIGHT),
    "other": ("#8a9199", _DARK_ON_LIGHT),
    # Terms of a planned step: computing is blue and green, talking light, waiting warm.
    "forward": ("#0072b2", "#ffffff"),
    "backward": ("#3a8fc0", "#ffffff"),
    "recompute": ("#009e73", "#ffffff"),
    "head": ("#8fd3bd", _DARK_ON_LIGHT),
    "tp": ("#56b4e9", _DARK_ON_LIGHT),
    "cp": ("#7cc5ee", _DARK_ON_LIGHT),
    "ep": ("#a3d6f3", _DARK_ON_LIGHT),
    "dp": ("#cc79a7", _DARK_ON_LIGHT),
    "pp": ("#e0a8c6", _DARK_ON_LIGHT),
    "bubble": ("#d55e00", "#ffffff"),
    "offload": ("#e69f00", _DARK_ON_LIGHT),
    "host": ("#8a9199", _DARK_ON_LIGHT),
    "straggle": ("#d5d9dd", _DARK_ON_LIGHT),
    # Memory.
    "baseline": ("#8a9199", _DARK_ON_LIGHT),
    "weights": ("#0072b2", "#ffffff"),
    "gradients": ("#56b4e9", _DARK_ON_LIGHT),
    "activations": ("#e69f00", _DARK_ON_LIGHT),
    "logits": ("#cc79a7", _DARK_ON_LIGHT),
    "allocator": ("#d5d9dd", _DARK_ON_LIGHT),
    "working": ("#8fd3bd", _DARK_ON_LIGHT),
    "peak": ("#5d666e", "#ffffff"),
}

_FILL_RULES = "\n".join(
    f".fill-{name} {{ fill: {fill}; background: {fill}; }} .on-{name} {{ fill: {ink}; }}"
    for name, (fill, ink) in _FILLS.items()
)

_RULES = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #14171a; --soft: #5d666e; --rule: #e3e6e9;
  --line: #0072b2; --lost: #cc79a7; --alarm: #b3261e; --good: #00724f; --pause: #8a5a00; --panel: #f6f7f8; }
@media (prefers-color-scheme: dark) { :root { --paper: #121417; --ink: #e8eaed; --soft: #9aa3ab; --rule: #2a2f34;
  --line: #56b4e9; --lost: #cc79a7; --alarm: #ff8a80; --good: #4fd1a5; --pause: #f0b429; --panel: #1a1d21; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 56px 32px 72px; }
h1 { font-size: 26px; line-height: 1.2; font-weight: 650; letter-spacing: -0.01em; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; font-weight: 650; margin: 0 0 4px; }
p { margin: 0; max-width: 76ch; overflow-wrap: anywhere; }
section { margin-top: 56px; }
.title { display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: baseline; }
.state { font-size: 13px; font-weight: 650; letter-spacing: 0.04em; color: var(--good); }
.state.bad { color: var(--alarm); } .state.paused { color: var(--pause); }
.soft, figcaption, .note { color: var(--soft); font-size: 13px; }
p.soft { max-width: 100ch; }
.about { margin-top: 6px; color: var(--soft); max-width: 100ch; }
.headline { margin-top: 24px; font-size: 19px; line-height: 1.4; max-width: 90ch; }
.alarm { color: var(--alarm); }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(148px, 1fr)); gap: 28px 20px;
  margin: 36px 0 0; padding: 0; }
.figures div { min-width: 0; }
.figures dt { color: var(--soft); font-size: 13px; }
.figures dd { margin: 0; font-size: 25px; line-height: 1.3; font-weight: 600; letter-spacing: -0.01em;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.figures dd + dd { font-size: 12.5px; font-weight: 400; letter-spacing: 0; color: var(--soft); white-space: normal; }
figure { margin: 16px 0 0; }
.frame { padding: 10px 10px 30px 48px; }
svg.plot { display: block; width: 100%; height: 240px; overflow: visible; }
svg.bar { display: block; width: 100%; height: 34px; border-radius: 3px; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  font-variant-numeric: tabular-nums; }
.tick { fill: var(--soft); paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
.grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke: var(--line); stroke-width: 1.75; stroke-linejoin: round; stroke-linecap: round; }
.lost-line { fill: none; stroke: var(--lost); stroke-opacity: 0.4; stroke-width: 8; stroke-linejoin: round;
  stroke-linecap: round; }
.reference { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 4; }
.restart { stroke: #d55e00; stroke-width: 1.25; stroke-dasharray: 4 3; }
.checkpoint { stroke: var(--soft); stroke-width: 2; }
.key { display: inline-block; width: 18px; height: 0; margin: 0 6px 3px 0; vertical-align: middle;
  border-top: 2px solid var(--line); }
figcaption span { margin-right: 18px; white-space: nowrap; }
.key.lost-key { border-top: 8px solid color-mix(in srgb, var(--lost) 40%, transparent); border-radius: 4px; }
.key.restart-key { border-top: 2px dashed #d55e00; }
.key.checkpoint-key { width: 2px; height: 10px; border: 0; background: var(--soft); }
.bars { display: grid; grid-auto-flow: row dense; grid-template-columns: max-content minmax(0, 1fr) max-content;
  gap: 8px 14px; align-items: center; margin-top: 16px; font-variant-numeric: tabular-nums; }
.bars b { font-weight: 600; grid-column: 3; text-align: right; } .bars svg { grid-column: 2; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 8px; }
.scroll { overflow-x: auto; margin-top: 16px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 400; color: var(--soft); font-size: 13px; }
th, td { padding: 5px 0 5px 20px; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap;
  vertical-align: baseline; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.text, th.text { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.facts td:first-child { width: 180px; }
tr.whole td { font-weight: 600; }
tr.term td:first-child { padding-left: 16px; }
td.far { font-weight: 600; color: var(--alarm); }
.note { margin-top: 12px; max-width: 100ch; }
pre { margin: 16px 0 0; padding: 16px 18px; background: var(--panel); border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  max-height: 480px; overflow-y: auto; }
pre .soft { font-size: inherit; }
.attempt { margin-top: 14px; }
details { margin-top: 6px; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
footer { margin-top: 64px; padding-top: 16px; border-top: 1px solid var(--rule); }
@media (max-width: 600px) {
  main { padding: 28px 18px 48px; } section { margin-top: 44px; } h1 { font-size: 22px; }
  .figures { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 22px 14px; } .figures dd { font-size: 22px; }
  svg.plot { height: 190px; } .frame { padding-left: 40px; } .headline { font-size: 17px; }
  .bars { grid-template-columns: minmax(0, 1fr) max-content; gap: 4px 12px; }
  .bars b { grid-column: 2; } .bars svg { grid-column: 1 / -1; margin-bottom: 8px; }
  th, td { padding-left: 10px; font-size: 13px; } .wide { display: none; }
}
@media print { main { max-width: none; padding: 0; } section { break-inside: avoid; } pre { max-height: none; } }
"""

_STYLE_SHEET = _RULES + _FILL_RULES
"""Everything between <style> and </style>; asks for nothing from outside the page."""


def html_page(title: str, kind: str, body: str, *, rules: str = "") -> str:
    """A whole page: head with the style sheet and more rules, and the body."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}: {kind}</title>\n<style>{_STYLE_SHEET}{rules}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
