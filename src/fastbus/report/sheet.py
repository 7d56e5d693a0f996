"""The style sheet of the page: light and dark, desk, telephone and paper."""

SHEET = """
:root { color-scheme: light dark; --ink: #17202e; --soft: #556070; --paper: #fbfbf9; --card: #ffffff;
  --line: #dfe3e8; --accent: #23659e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --soft: #a4aebb; --paper: #12161c; --card: #1a2029; --line: #303945; --accent: #7fb7e6; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 66rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: .5rem 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .9rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: .95rem; margin: 0 0 .5rem; }
p { max-width: 46rem; }
.lead { font-size: 1.05rem; color: var(--soft); margin: 0 0 1.4rem; }
.note { border-left: 3px solid var(--accent); padding: .2rem 0 .2rem .8rem; }
.small { font-size: .85rem; color: var(--soft); }
.cards { list-style: none; margin: 0; padding: 0; display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); }
.cards li { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem;
  display: flex; flex-direction: column; }
.cards strong { font-size: 1.7rem; line-height: 1.25; font-weight: 650; font-variant-numeric: tabular-nums; }
.what { font-size: .9rem; }
.interval, .baseline { font-size: .83rem; color: var(--soft); }
.baseline { margin-top: auto; padding-top: .4rem; color: var(--ink); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.2rem; margin: 0 0 1rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; padding: 1rem; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  max-width: 32rem; min-width: 0; break-inside: avoid; }
figure svg { display: block; max-width: 100%; height: auto; margin: 0 auto; color: var(--ink); }
figure svg text { font-family: inherit !important; }
figcaption { font-size: .87rem; color: var(--soft); margin-top: .7rem; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 20rem; }
caption { text-align: left; font-size: .87rem; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .35rem 1.3rem .35rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 500; }
thead th { color: var(--soft); vertical-align: bottom; }
td { overflow-wrap: anywhere; min-width: 4.5rem; }
tbody th { overflow-wrap: break-word; min-width: min(9rem, 32vw); }
.number { text-align: right; white-space: nowrap; }
details { margin: 1rem 0; }
summary { cursor: pointer; color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (max-width: 32rem) {
  body { padding: 1rem .9rem 2rem; }
  dl { grid-template-columns: 1fr; gap: .1rem; }
  dd { margin-bottom: .5rem; }
  figure { padding: .7rem; }
  table { font-size: .84rem; }
  .number { white-space: normal; }
}
@media print {
  :root { --ink: #000; --soft: #444; --paper: #fff; --card: #fff; --line: #bbb; }
  body { max-width: none; padding: 0; font-size: 11pt; }
  h2 { break-after: avoid; }
  tr, .cards li { break-inside: avoid; }
  .table { overflow: visible; }
  .number { white-space: normal; }
}
"""
