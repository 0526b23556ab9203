"""The rule of CONTRIBUTING.md for sentences, held in code and tests."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.harness import ROOT


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VERBS = _words(
    """
    abort accept acknowledge acquire add adopt advance allow alter announce answer append apply
    archive arm ask assert assign back balance beat become begin believe bind block bound break
    bring buffer build call cancel carry catch change charge check choose claim clean clear close
    collect come commit compact compare compile complete compress compute configure connect consume
    continue convert copy correct count cover create cut deal decide declare decode decompress
    decrypt defer define delay delete deliver derive describe detach determine discard disconnect
    distribute divide do download drain draw drop dump elect embed empty enable encode encrypt end
    enforce enlist enter escape estimate evaluate exchange execute exit expect expire explain expose
    extend extract fail fence fetch file fill filter find finish fix flush fold follow force forget
    format forward frame free freeze fsync garble gather generate get give go group grow guard guess
    hand handle hash have hear hide hold ignore import include increment index inform ingest
    initialise insert inspect install interrupt invalidate issue join judge keep kill land lay lead
    learn leave lend let limit link list listen load locate lock log look lose lower make map mark
    match measure meet merge mind mirror move multiply name negotiate note notify observe obtain
    offer open order pack park parse partition pass patch pause peek pick place plan plant play poll
    pop postpone prefer prepare print probe process produce prolong prove provide prune publish pull
    push put queue raise read rebalance rebuild recall receive reckon recognise record recover
    reduce refer refresh refuse register reject relay release reload remember remove rename render
    renew repair repeat replace replay reply report request require reread reserve reset resolve
    respond restart restore resume retry return reuse revoke rewrite roll rotate round route run
    save say scan schedule scrape search see seed select send serve set settle share shed ship show
    shrink shuffle shut sign skip sleep slice sort split spread stage stand start stay step stop
    store stream strip submit subscribe subtract sum supply suppress suspend sweep switch sync
    synchronise take tell test throttle time touch trace track transfer translate trim truncate try
    turn unblock undo unite unlock unpack unwrap update upload use validate verify visit wait wake
    walk warn watch weigh widen withdraw work wrap write yield
    """
)
"""The verbs that a function's docstring begins with. A new one is added here."""

NOUNS = _words(
    """
    answers blocks bounds buffers calls changes charges checks claims commits counts delays ends
    fetches files forms frames groups hands imports indexes keys limits links lists locks logs looks
    makes marks names notes offers orders parts partitions passes places plans plays processes
    produces queues records releases reports requests routes runs sets signs slices stages
    starts steps stops stores streams sums tests times tries turns works
    """
)
"""The plurals of nouns that are verbs too."""

BANNED = _words("what who whose whom whoever whomever whatever whichever of those where")
"""The words that no sentence begins with."""

FRAGMENTS = BANNED | _words(
    """
    about after and as at before behind beside between but by called changed cut decided else
    followed for from here how if in instead it likewise looked made never on once only or
    published returned running so started such taken that then there these they this through to
    told under until up when which while why with within without yields
    """
)
"""The words that the docstring of a class or of a value does not begin with either."""

ERRORS = frozenset({"KafkaError", "CannotStart", "CannotGoOn", "BadConfig"})
LEVELS = frozenset({"debug", "info", "warning", "warn", "error", "exception"})
FOLDERS = ("kproxy", "tests", "benchmarks", "spark_examples")
_VALUES = ("property", "cached_property")
_TEST = re.compile(r"test_(?:" + "|".join(sorted(BANNED)) + r")_")
_EVENT = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_EVENT_PARTS = BANNED - {"of"} | {"anyone", "somebody", "nobody"}
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n\s*\n\s*|\n\s*[-*] ")
_STRINGS_AND_COMMENTS = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*''', re.DOTALL
)
_WORD = re.compile(r"[(\"'*]*([A-Za-z]+)")
_HELPS = ("help", "description")
_SPEAKS = re.compile(
    r"help=|description=|KafkaError|Cannot(?:Start|GoOn)|BadConfig|MetricFamily|log\.(?:debug|info|warn|error|exception)"
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef

Offender = tuple[int, str, str]
"""The line, the part of the rule, and the text."""


def offenders(source: str, *, speaks: bool = True) -> Iterator[Offender]:
    """Yield each offender of a file. `speaks`: it may raise errors and log events of kproxy's."""
    tree = ast.parse(source)
    yield from _of_docstrings(tree)
    if speaks and _SPEAKS.search(source):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield from _of_call(node)
    yield from _of_comments(source)


def _of_docstrings(node: ast.AST) -> Iterator[Offender]:
    """Yield those of a block and of the blocks in it; the expressions are passed over."""
    if isinstance(node, _Function) and _TEST.match(node.name):
        yield node.lineno, "name", node.name
    for at, part in enumerate(node.body):  # type: ignore[attr-defined]
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
            text = part.value.value
            if isinstance(text, str):
                owner = node if at == 0 else None
                yield from _of_docstring(owner, text.strip(), part.lineno)
        elif hasattr(part, "body"):
            yield from _of_docstrings(part)


def _of_docstring(owner: ast.AST | None, text: str, line: int) -> Iterator[Offender]:
    first = _first(text)
    if not isinstance(owner, _Function):
        if _fragment(first):
            yield line, "value", text
            return
    elif any(ast.unparse(one).split(".")[-1] in _VALUES for one in owner.decorator_list):
        if _fragment(first):
            yield line, "property", text
            return
    elif first not in VERBS and first != "whether" and not owner.name.startswith("test_"):
        yield line, "function", text
        return
    yield from _of_text(text, line, "docstring")


def _fragment(word: str) -> bool:
    """Whether this word is no start of a noun: no article, or a verb of the third person."""
    return word in FRAGMENTS or (
        word not in NOUNS and (word.removesuffix("s") in VERBS or word.removesuffix("es") in VERBS)
        and word.endswith("s")
    )  # fmt: skip


def _of_text(text: str, line: int, part: str) -> Iterator[Offender]:
    for sentence in _SENTENCES.split(text):
        if _first(sentence) in BANNED:
            yield line, part, sentence


def _first(sentence: str) -> str:
    """Return a sentence's first word in lower case, or "" where it begins with no word."""
    word = _WORD.match(sentence)
    return word[1].lower() if word else ""


def _of_call(node: ast.Call) -> Iterator[Offender]:
    for word in node.keywords:
        if word.arg in _HELPS and _first(_text(word.value)) in BANNED:
            yield node.lineno, "help", _text(word.value)
    name = ast.unparse(node.func).rpartition(".")[2]
    texts = [*node.args, *(word.value for word in node.keywords)]
    if name in LEVELS and isinstance(node.func, ast.Attribute) and node.args:
        event = _text(node.args[0])
        if _EVENT.fullmatch(event) and _EVENT_PARTS & set(event.split("_")):
            yield node.lineno, "event", event
    elif name not in ERRORS and not name.endswith("MetricFamily"):
        return
    for text in map(_text, texts):
        if " " in text:
            yield from _of_text(text, node.lineno, "message")


def _text(node: ast.expr) -> str:
    """Return the text that an expression begins with, or ""."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return _text(node.values[0]) + " "
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def _of_helps(source: str) -> Iterator[Offender]:
    """Yield the HELP texts of metrics that begin with no noun."""
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and " " in text and "\n" not in text and _first(text) in FRAGMENTS:
            yield node.lineno, "help", text  # type: ignore[attr-defined]


def _of_comments(source: str) -> Iterator[Offender]:
    """Yield sentences of comments; lines that follow each other are one comment."""
    block: list[str] = []
    began = last = 0
    for row, text, alone in _comments(source):
        if block and not (alone and row == last + 1):
            yield from _of_text(" ".join(block), began, "comment")
            block = []
        if not block:
            began = row
        block.append(text)
        last = row if alone else 0
    yield from _of_text(" ".join(block), began, "comment")


def _comments(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each comment: its line, its text, and whether it has a line of its own.

    `tokenize` finds the same and takes three times as long for all files.
    """
    row, at = 1, 0
    for match in _STRINGS_AND_COMMENTS.finditer(source):
        if source[match.start()] == "#":
            row += source.count("\n", at, match.start())
            at = match.start()
            alone = not source[source.rfind("\n", 0, at) + 1 : at].strip()
            yield row, match[0].lstrip("#: "), alone


def found() -> Iterator[str]:
    """Yield each offender with its place."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            every = [*offenders(source, speaks=folder != "tests")]
            if path.name in ("series.py", "counters.py"):
                every += _of_helps(source)
            for line, part, text in sorted(every):
                where = f"{path.relative_to(ROOT)}:{line}: {part}: {text}"
                yield " ".join(where.split())


def test_sentences_follow_the_rule() -> None:
    assert not (every := [*found()]), "\n".join(every)


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """The sum."""\n',
        'def f():\n    """Return it. What is left waits."""\n',
        'class A:\n    """Reads a log."""\n',
        'class A:\n    @property\n    def a(self):\n        """What is left."""\n',
        'A = 1\n"""Of one client."""\n',
        "# The first.\n# Whose it is.\n",
        'log.info("http_tells_anyone")\n',
        'raise KafkaError(1, "what is not there")\n',
        "def test_who_waits():\n    pass\n",
    ],
)
def test_offenders_are_found(source: str) -> None:
    assert len([*offenders(source)]) == 1


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """Return the sum."""\n',
        'def f():\n    """Whether it is there."""\n',
        'class A:\n    """A reader of a log."""\n',
        'class A:\n    @property\n    def a(self):\n        """The rest."""\n',
        '# The first,\n# of which one is left\na = "# what"\n',
        'def test_a():\n    """FAULT 1: the rest."""\n',
        'raise KafkaError(1, "the queue is gone")\n',
    ],
)
def test_sentences_that_follow_the_rule_pass(source: str) -> None:
    assert not [*offenders(source)]
