"""Merges the metrics of several processes into one page: each sample carries its process, each family appears once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

END: Final = "# EOF"
"""The last line of a page in OpenMetrics."""


def labelled(pages: Mapping[int, str]) -> str:
    """Merges pages, by the number of their gateway process, and adds a label `gateway`. All pages are in the same text
    format of Prometheus."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for number, page in sorted(pages.items()):
        family = ""
        for line in page.splitlines():
            if line == END:
                continue
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                if line not in (told := heads.setdefault(family, [])):
                    told.append(line)
            elif line:
                samples.setdefault(family, []).append(_with_label(line, number))
    return "".join(
        "\n".join([*head, *samples.get(family, [])]) + "\n" for family, head in heads.items() if samples.get(family)
    )


def _with_label(sample: str, number: int) -> str:
    """A sample's labels begin after its name, which has neither a brace nor a space."""
    at = min(place for place in (sample.find("{"), sample.find(" ")) if place >= 0)
    if sample[at] == "{":
        return f'{sample[: at + 1]}gateway="{number}",{sample[at + 1 :]}'
    return f'{sample[:at]}{{gateway="{number}"}}{sample[at:]}'
