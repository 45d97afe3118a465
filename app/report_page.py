"""HTML of a report: one file that needs no network, follows light and dark, and makes every stranger's
word inert."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from app.figures.base import Figure
from app.theme import DARK, LIGHT, Mode, Palette

_JSON_MARKS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def text(value: object) -> str:
    """Anything as inert text."""
    spaced = str(value).replace("\N{NO-BREAK SPACE}", " ")
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in spaced)
    return html.escape(shown, quote=True)


def rich(markdown: str) -> str:
    """A reading as HTML: **bold**, `code` and escapes are read, everything else is inert."""
    plain = html.unescape(markdown)
    out: list[str] = []
    mark: list[str] = []  # what is open
    position = 0
    while position < len(plain):
        here = plain[position]
        if here == "\\" and position + 1 < len(plain) and not plain[position + 1].isalnum():
            out.append(text(plain[position + 1]))
            position += 2
            continue
        sign = "**" if plain.startswith("**", position) else here if here == "`" else ""
        if not sign:
            out.append(text(here) if here != "\n" else "<br>")
            position += 1
            continue
        tag = "strong" if sign == "**" else "code"
        out.append(f"</{tag}>" if tag in mark else f"<{tag}>")
        mark = [open for open in mark if open != tag] if tag in mark else [*mark, tag]
        position += len(sign)
    return "".join(out) + "".join(f"</{tag}>" for tag in reversed(mark))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str) -> str:
    """A table of inert cells; numbers stand to the right."""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    words = f"<caption>{text(caption)}</caption>"
    return (
        f'<div class="wide"><table>{words}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def pairs(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values."""
    return "<dl>" + "".join(f"<dt>{text(n)}</dt><dd>{text(v)}</dd>" for n, v in rows) + "</dl>"


def tiles(rows: Iterable[tuple[str, str, str]]) -> str:
    """The headline: value, what it is, and a machine-readable name."""
    return (
        '<div class="tiles">'
        + "".join(
            f'<div><b data-key="{text(key)}">{text(value)}</b><span>{text(name)}</span></div>'
            for key, value, name in rows
        )
        + "</div>"
    )


def figure(name: str, title: str, drawn: Mapping[Mode, Figure]) -> str:
    """A figure in both modes; the script at the end draws the one that is wanted."""
    one = drawn["light"]
    high = int(one.fig.layout.height or 320)
    data = "".join(
        f'<script type="application/json" data-figure="{name}" data-mode="{mode}">{_json(each)}</script>'
        for mode, each in drawn.items()
    )
    reading = f"<figcaption>{rich(one.reading)}</figcaption>" if one.reading else ""
    return (
        f'<figure><h2>{text(title)}</h2><div class="scroll"><div id="{name}" class="plot" role="img" '
        f'aria-label="{text(one.alt)}" style="height:{high}px"></div></div>{reading}{data}</figure>'
    )


def _json(drawn: Figure) -> str:
    found = drawn.fig.to_json()
    for mark, escape in _JSON_MARKS.items():
        found = found.replace(mark, escape)
    return str(found)


def page(title: str, body: str) -> str:
    """The whole file: styles, the plotting library once, the body, and the few lines that draw."""
    from plotly.offline import get_plotlyjs

    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{text(title)}</title><style>{_styles()}</style>"
        f"<script>{get_plotlyjs()}</script></head>\n<body><main>{body}</main>"
        f"<script>{_DRAW}</script></body></html>\n"
    )


def _variables(palette: Palette) -> str:
    names = [
        f.name for f in fields(palette) if isinstance(getattr(palette, f.name), str) and f.name != "mode"
    ]
    return "".join(f"--{name}:{getattr(palette, name)};" for name in names)


def _styles() -> str:
    return (
        f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}" + _CSS
    )


_CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.55 Inter,system-ui,sans-serif}
main{max-width:1040px;margin:0 auto;padding:32px 24px 64px}
h1{font:600 32px/1.2 'Source Serif 4',Georgia,serif;margin:0 0 8px;overflow-wrap:anywhere}
h2{font-size:20px;font-weight:650;margin:0 0 8px}
p,figcaption,dd{overflow-wrap:anywhere}
p.lead,figcaption{max-width:720px}
section,figure{margin:40px 0 0}
a{color:var(--action)}
code,td{font-family:'JetBrains Mono',ui-monospace,monospace;font-size:13px;font-variant-numeric:tabular-nums}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:1px;margin:24px 0 0;
background:var(--line);border:1px solid var(--line)}
.tiles div{background:var(--ground);padding:12px 16px}
.tiles b{display:block;font-size:20px;font-weight:650}
.tiles span{color:var(--muted);font-size:13px}
dl{display:grid;grid-template-columns:minmax(120px,200px) 1fr;gap:4px 16px;margin:0}
dt{color:var(--muted)}dd{margin:0}
.wide{overflow-x:auto}
.scroll{overflow-x:auto}.plot{min-width:560px}
table{border-collapse:collapse;min-width:480px}
caption{text-align:left;color:var(--muted);padding:0 0 8px}
th{font-size:13px;font-weight:500;color:var(--muted);text-align:right}
td{text-align:right}
th,td{padding:4px 12px;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{padding-left:0}
ul{padding-left:20px;max-width:720px}
footer{margin-top:48px;color:var(--muted);font-size:13px}
@media print{.plot{min-width:0}figure,section{break-inside:avoid}}
"""

_DRAW = """
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const draw = () => {
    const mode = dark.matches ? "dark" : "light";
    for (const script of document.querySelectorAll(`script[data-mode="${mode}"]`)) {
      const { data, layout } = JSON.parse(script.textContent);
      const config = { displaylogo: false, responsive: true, scrollZoom: false };
      Plotly.react(script.dataset.figure, data, { ...layout, autosize: true }, config);
    }
  };
  dark.addEventListener("change", draw);
  draw();
})();
"""
