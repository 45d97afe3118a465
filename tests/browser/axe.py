"""axe-core on a page: serious and critical findings, less the few of Streamlit's own making."""

from __future__ import annotations

from dataclasses import dataclass

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

IMPACTS = ("serious", "critical")


@dataclass(frozen=True)
class Known:
    """A finding that is Streamlit's or Plotly's, not ours: the rule, a part of the markup, the reason."""

    rule: str
    markup: str
    reason: str


_NAVIGATION = "st.navigation with sections puts headings between the <ul> and its <li>"
KNOWN: tuple[Known, ...] = (
    Known("list", '<ul data-testid="stSidebarNavItems"', _NAVIGATION),
    Known("listitem", '<li class="st-emotion-cache', _NAVIGATION),
)


def findings(page: Page) -> list[str]:
    """Serious and critical findings on the page as it stands, one line each, known ones left out."""
    response = Axe().run(page).response
    return [
        f"{violation['impact']} {violation['id']}: {violation['help']}: {node['html'][:300]}"
        f" ({'; '.join(check['message'] for check in node['any'] + node['all'] + node['none'])[:200]})"
        for violation in response["violations"]
        if violation["impact"] in IMPACTS
        for node in violation["nodes"]
        if not any(known.rule == violation["id"] and known.markup in node["html"] for known in KNOWN)
    ]
