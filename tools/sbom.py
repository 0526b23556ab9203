"""Print what is installed beside a Python as a CycloneDX 1.6 document, for `make dist`.

Run it by the Python of the environment that it is to tell of. It reads what pip has noted of each
distribution, and writes neither a time nor a random number: the same environment gives the same
bytes.
"""

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from typing import Any

ROOT = "kproxy"
TOOLS = {"pip", "setuptools", "wheel"}  # of the environment, not of what is installed in it


def normal(name: str) -> str:
    """Return a name as package URLs have it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def purl(one: Distribution) -> str:
    return f"pkg:pypi/{normal(one.name)}@{one.version}"


def component(one: Distribution) -> dict[str, Any]:
    told = {"type": "library", "bom-ref": purl(one), "name": one.name, "version": one.version,
            "purl": purl(one)}  # fmt: skip
    expression = one.metadata.get("License-Expression")
    if expression:
        return told | {"licenses": [{"expression": expression}]}
    classes = (c for c in one.metadata.get_all("Classifier") or () if c.startswith("License ::"))
    names = sorted(c.rpartition(" :: ")[2] for c in classes)
    return told | ({"licenses": [{"license": {"name": name}} for name in names]} if names else {})


def needs(one: Distribution, known: dict[str, Distribution]) -> list[str]:
    """Return the package URLs of what a distribution asks for, as far as it is installed."""
    names = {normal(re.split(r"[^\w.-]", asked, maxsplit=1)[0]) for asked in one.requires or ()}
    return sorted(purl(known[name]) for name in names & known.keys())


def document() -> dict[str, Any]:
    found = {normal(one.name): one for one in distributions()}
    known = {name: one for name, one in sorted(found.items()) if name not in TOOLS}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(known[ROOT]) | {"type": "application"}},
        "components": [component(one) for name, one in known.items() if name != ROOT],
        "dependencies": [
            {"ref": purl(one), "dependsOn": needs(one, known)} for one in known.values()
        ],
    }


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
    sys.stdout.write("\n")
