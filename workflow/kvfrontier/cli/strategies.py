"""`kvfrontier strategies`: what each strategy does, read off its class; docs/strategies.md is its output."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, get_type_hints

import click

if TYPE_CHECKING:
    from kvfrontier.strategies.base import Strategy

CONTEXT_TOKENS = 4096
EXAMPLE = dict(layers=32, q_heads=32, kv_heads=8, head_dim=128, hidden=4096, vocab=128_256)
LABELS = ("Paper", "Memory", "Differs", "Phases", "Needs")


@dataclass(frozen=True)
class Entry:
    """One strategy in words; `parameters` are (name, default, description)."""

    name: str
    summary: str
    arxiv: tuple[str, ...]
    memory: str
    differs: str
    phases: str
    needs: str
    bytes_share: float
    parameters: tuple[tuple[str, str, str], ...]


@click.command()
@click.argument("name", required=False)
@click.option("--markdown", is_flag=True, help="Print the page docs/strategies.md.")
def command(name: str | None, markdown: bool) -> None:
    """List every strategy: what it keeps, where it acts, what it needs; or all there is to say of the strategy NAME."""
    from kvfrontier.registry import STRATEGIES

    if name is not None:
        click.echo("\n".join(details(entry_of(STRATEGIES.get(name)))))
        return
    entries = [entry_of(STRATEGIES.get(known)) for known in STRATEGIES.names()]
    if markdown:
        click.echo(page(entries), nl=False)
        return
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        click.echo(f"{entry.name:{width}}  {entry.summary}")
    click.echo("\nkvfrontier strategies NAME: its parameters, its paper, what differs from it")


def entry_of(cls: type[Strategy]) -> Entry:
    """Read a strategy's docstring, fields and formula."""
    said = inspect.getdoc(cls) or ""
    parts = _labelled(said)
    return Entry(
        name=cls.name,
        summary=_one_line(said.partition("\n\n")[0]),
        arxiv=tuple(dict.fromkeys(re.findall(r"arXiv:(\d{4}\.\d{5})", said))),
        memory=parts.get("Memory", ""),
        differs=parts.get("Differs", ""),
        phases=parts.get("Phases", "").rstrip("."),
        needs=parts.get("Needs", "").rstrip("."),
        bytes_share=_bytes_share(cls()),
        parameters=tuple(_parameters(cls)),
    )


def page(entries: list[Entry]) -> str:
    """The whole of docs/strategies.md."""
    lines = [
        "# Strategies",
        "",
        "Made from the classes in `workflow/kvfrontier/strategies/` by `kvfrontier strategies --markdown`;",
        "a test holds the two together. Bytes: keys and values held in all tiers after a prompt of "
        f"{CONTEXT_TOKENS:,} tokens,",
        "at default settings, as a share of the full cache's (shape of Llama-3.1-8B, 16-bit elements), by formula.",
        "",
        "| strategy | what it does | paper | acts at | needs | bytes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for entry in entries:
        papers = ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in entry.arxiv) or "-"
        lines.append(
            f"| [`{entry.name}`](#{entry.name}) | {_in_table(entry.summary)} | {papers} | {entry.phases or '-'} | "
            f"{entry.needs or '-'} | {entry.bytes_share:.0%} |"
        )
    for entry in entries:
        lines += ["", f"## {entry.name}", "", *_section(entry)]
    return "\n".join(lines) + "\n"


def details(entry: Entry) -> Iterator[str]:
    """The same of one strategy, for a terminal."""
    yield f"{entry.name}: {entry.summary}"
    said = {
        "paper": ", ".join(f"arXiv:{number}" for number in entry.arxiv),
        "differs": entry.differs,
        "memory": entry.memory,
        "acts at": entry.phases,
        "needs": entry.needs,
        "bytes": f"{entry.bytes_share:.0%} of the full cache's at {CONTEXT_TOKENS:,} tokens, default settings",
    }
    for label, text in said.items():
        if text:
            yield textwrap.fill(text, 110, initial_indent=f"  {label:8} ", subsequent_indent=" " * 11)
    for name, default, description in entry.parameters:
        yield textwrap.fill(f"{name} = {default}: {description}", 110, initial_indent="  ", subsequent_indent=" " * 6)


def _section(entry: Entry) -> Iterator[str]:
    yield entry.summary
    if entry.differs:
        yield from ("", f"What differs from the paper: {entry.differs}")
    if entry.memory:
        yield from ("", f"Memory: {entry.memory}")
    if entry.parameters:
        yield from ("", "| parameter | default | meaning |", "| --- | --- | --- |")
        yield from (f"| `{name}` | `{default}` | {_in_table(said)} |" for name, default, said in entry.parameters)


def _labelled(said: str) -> dict[str, str]:
    """What follows each of LABELS, up to the next one or the end of its paragraph or sentence group."""
    found = {}
    for paragraph in said.split("\n\n"):
        pieces = re.split(rf"(?:^|(?<=\s))({'|'.join(LABELS)})( and needs)?: ", _one_line(paragraph))
        for label, both, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            found[label] = text.strip()
            if both:
                found["Needs"] = found[label]
    return found


def _in_table(text: str) -> str:
    return text.replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _parameters(cls: type[Strategy]) -> Iterator[tuple[str, str, str]]:
    hints = get_type_hints(cls, include_extras=True)
    for item in fields(cls):
        metadata = getattr(hints[item.name], "__metadata__", ())
        said = next((note.description for note in metadata if getattr(note, "description", None)), "")
        yield item.name, _shown(_default(item)), said


def _default(item: Any) -> Any:
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default


def _shown(value: Any) -> str:
    """As it is written in YAML."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _bytes_share(strategy: Strategy) -> float:
    from kvfrontier.plan.model import ModelSpec

    spec = ModelSpec("example", **EXAMPLE)
    return strategy.kv_bytes(spec, 2, CONTEXT_TOKENS) / (CONTEXT_TOKENS * spec.kv_bytes_per_token(2))
