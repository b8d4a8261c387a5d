"""Pages that need no network: the shell of an HTML page, tables, lists, and room for charts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

import altair as alt


def document(
    title: str, head: str, sections: Iterable[tuple[str, str]], drawn: Mapping[str, Any], script: str = ""
) -> str:
    """A page that needs no network: headed sections of HTML, and the charts that `figures` makes room for.

    `script` runs after the charts were asked for.
    """
    body = "\n".join(f"<section><h2>{escape(name)}</h2>\n{text}\n</section>" for name, text in sections if text)
    specs = {f"chart-{name}": chart.to_dict() for name, chart in drawn.items()}
    return _PAGE.format(
        title=escape(title),
        css=_CSS,
        head=head,
        body=body,
        bundle=_bundle(),
        specs=script_safe(specs),
        script=script,
    )


def figures(drawn: Mapping[str, Any]) -> str:
    """Room for each chart."""
    parts = []
    for name in drawn:
        words = escape(name.replace("_", " "))
        place = f'<div id="chart-{escape(name)}" role="figure" aria-label="{words}"></div>'
        parts.append(f'<figure><div class="box">{place}</div></figure>')
    return "\n".join(parts)


def html_list(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for."""
    items = [f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs if text]
    return f"<dl>{''.join(items)}</dl>"


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table; one that is stacked on a narrow screen bears its headings in each cell."""
    top = "".join(f"<th>{escape(head)}</th>" if head else "<td></td>" for head in heads)
    body = "".join(
        "<tr>" + "".join(f'<td data-head="{escape(head)}">{escape(cell)}</td>'
                         for head, cell in zip(heads, row, strict=True)) + "</tr>"
        for row in rows
    )  # fmt: skip
    shown = f' class="{kind}"' if kind else ""
    return f'<div class="box"><table{shown}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def script_safe(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    return vl_convert.javascript_bundle(
        _GLOBAL, vl_version=".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    )


_GLOBAL = "window.vegaEmbed = vegaEmbed;"
_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; font: 16px/1.5 system-ui, sans-serif; color: #222;
  background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #ddd; }
.verdict { border-left: 5px solid #4c78a8; background: #f1f5fa; padding: .6rem .8rem; margin: .8rem 0; }
.verdict.bad, .caution { border-left: 5px solid #b35900; background: #fdf3e7; padding: .6rem .8rem; }
.box { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #eee; vertical-align: top;
  overflow-wrap: normal; }
th { font-weight: 600; color: #555; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) minmax(0, 1fr); gap: .2rem 1rem; margin: 0; }
dt { color: #555; } dd { margin: 0; }
ul { padding-left: 1.2rem; } li { margin: .5rem 0; } li.bad { border-left: 4px solid #b35900; padding-left: .5rem; }
.do { color: #333; font-weight: 600; } .do code { white-space: nowrap; } .remark { color: #555; font-size: .9rem; }
pre { background: #f6f6f6; padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; }
code, pre { font-size: .88rem; } figure { margin: 1rem 0 2rem; }
.vega-embed details { top: 0; }
.live { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 1.5rem; align-items: start; }
.row { display: grid; grid-template-columns: 10rem minmax(4rem, 1fr) 9rem; gap: .6rem; align-items: center;
  margin: .3rem 0; }
.row[hidden] { display: none; } .row select { grid-column: 2 / 4; } .row input { width: 100%; min-width: 0; }
button, select { font: inherit; padding: .2rem .6rem; } output { font-variant-numeric: tabular-nums; }
.shares { display: flex; height: 1.4rem; margin: .6rem 0 .3rem; } .share { min-width: 1px; flex-basis: 0; }
.share-0 { background: #4c78a8; } .share-1 { background: #f58518; } .share-2 { background: #54a24b; }
.keys { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 0; }
.keys li { margin: 0; }
.keys li::before { content: ""; display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }
.key-0::before { background: #4c78a8; } .key-1::before { background: #f58518; } .key-2::before { background: #54a24b; }
@media (max-width: 800px) { .live { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 600px) {
  .row { grid-template-columns: minmax(0, 1fr) auto; } .row input { grid-column: 1 / 3; grid-row: 2; }
  .row select { grid-column: 1 / 3; }
  dl { grid-template-columns: minmax(0, 1fr); } dt { margin-top: .4rem; }
  table.stack thead { display: none; }
  table.stack, table.stack tbody, table.stack tr, table.stack td { display: block; }
  table.stack tr { padding: .4rem 0; border-bottom: 1px solid #ccc; }
  table.stack td { border: 0; padding: 0; display: flex; gap: .8rem; }
  table.stack td:empty { display: none; }
  table.stack td::before { content: attr(data-head); flex: 0 0 8rem; color: #555; }
}
@media print {
  .controls button, #live-notice { display: none; }
  body { max-width: none; font-size: 11pt; } .box { overflow: visible; }
  figure, tr, li { break-inside: avoid; } h2 { break-after: avoid; }
  .vega-embed { display: block; padding: 0; } .vega-embed details { display: none; }
  .vega-embed svg { max-width: 100%; height: auto; }
}
"""

# The policy forbids every request, so that a page opened years from now tells nobody.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{head}
{body}
</main>
<script>{bundle}</script>
<script>
const specs = {specs};
const actions = {{export: true, source: false, compiled: false, editor: false}};
for (const [id, spec] of Object.entries(specs))
  vegaEmbed("#" + id, spec, {{mode: "vega-lite", renderer: "svg", ast: true, actions}}).then(() => {{
    for (const menu of document.querySelectorAll("#" + id + " summary")) menu.ariaLabel = "save this chart";
  }}).catch(console.error);
{script}
</script>
</body>
</html>
"""
