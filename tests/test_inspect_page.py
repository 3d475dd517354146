"""The inspector's page in a real browser: what it shows, that it loads nothing, and that it stays small."""

import itertools
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollouts import answer, turn
from small_tokenizers import byte_level
from turnloom.inspector import inspect_run
from turnloom.inspector._page import page as document_of

pytestmark = pytest.mark.browser

DATA = Path(__file__).parent / "data"
TOKENIZER = byte_level()
WIDE, NARROW = (1400, 900), (420, 800)
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's Chromium, without a window."""
    sync_api = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("install Debian's chromium")
    with sync_api.sync_playwright() as playwright:
        # As root, as on many CI machines, its own sandbox cannot be had.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.getuid() == 0 else [])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of a body. In the end no page has complained, nor asked for anything but itself."""
    complaints: list[str] = []
    requests: list[str] = []
    path = tmp_path / "rollout.html"
    contexts = []

    def opened(body: bytes, *, tokenizer: Any = TOKENIZER, size: tuple[int, int] = WIDE, **settings: Any) -> Any:
        scheme = settings.pop("color_scheme", "light")
        path.write_text(document_of(inspect_run(body, name="rollout", tokenizer=tokenizer, **settings)), "utf-8")
        contexts.append(chromium.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert set(requests) <= {path.as_uri()}


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def await_found(page: Any, told: str) -> None:
    """Waits until the search says this."""
    page.locator("#found", has_text=re.compile(f"^{told}$")).wait_for()


def conversation() -> bytes:
    """Three turns: clean, then a fork at the word `sat`, which the prompt has as `tea`."""
    first, call, result = ids("<|im_start|>user\nthe cat<|im_end|>"), ids("the cat sat on the mat"), ids("bread\n")
    forked = first + ids("the cat tea on the mat") + result
    return answer(
        turn(
            first,
            call,
            [-0.01] * (len(call) - 1) + [None],
            type="function_call",
            name="look",
            arguments='{"at": "cat"}',
        ),
        {"type": "function_call_output", "call_id": None, "output": "bread"},
        turn(first + call + result, ids("milk"), role="assistant", content="milk it is"),
        turn(forked, ids("tea"), role="assistant", content="tea it is"),
        steps=3,
    )


def long_rollout(tokens: int, turns: int) -> bytes:
    """A row of about so many tokens."""
    draw = random.Random(0)
    words = ids(" the cat sat on the mat, tea and bread\n")
    held: list[int] = []
    items = []
    for number in range(turns):
        prompt = held + [draw.choice(words) for _ in range(tokens // turns // 2)]
        output = [draw.choice(words) for _ in range(tokens // turns // 2)]
        items.append(turn(prompt, output, [-draw.expovariate(1) for _ in output], content=f"answer {number}"))
        held = prompt + output
    return answer(*items)


def test_what_it_shows(open_page: Open) -> None:
    page = open_page(conversation(), fork_threshold_tokens=0)
    assert page.title() == "rollout · turnloom"
    assert page.text_content("#headline") == "okreward 1 · 3 turns · 2 rows"
    legend = page.text_content("#legend")
    for told in ("discarded 0", "unusable 1", "1 clean", "1 fork"):
        assert told in legend
    messages = page.text_content("#conversation")
    for said in ('look({\n "at": "cat"\n})', "bread", "milk it is", "tea it is", "steps3"):
        assert said in messages
    assert page.text_content("#stream .unusable") == " mat"[-len(page.text_content("#stream .unusable")) :]
    assert (
        "".join(page.locator("#stream .trained, #stream .unusable").all_text_contents())
        == "the cat sat on the matmilktea"
    )


def test_it_begins_with_what_was_asked(open_page: Open) -> None:
    asked = {"responses_create_params": {"input": "Where is the cat?"}}
    page = open_page(answer(*(turn([1], [2], content=f"answer {number}") for number in range(30)), **asked))
    page.locator("#stream .turn").first.wait_for()
    assert page.locator("#conversation").evaluate("list => list.scrollTop") == 0
    assert page.text_content("#conversation").startswith("userWhere is the cat?")


def test_a_drift_marks_the_first_different_token_on_both_sides(open_page: Open) -> None:
    page = open_page(conversation(), fork_threshold_tokens=0)
    page.keyboard.press("d")
    divergence = page.locator(".divergence")
    assert "of row 0 and leaves" in divergence.text_content()
    sides = inspect_run(conversation(), tokenizer=TOKENIZER, fork_threshold_tokens=0).turns[2].divergence
    assert sides
    for side, excerpt in zip(divergence.locator(".side").all(), (sides.held, sides.prompt), strict=True):
        marked = side.locator("mark.first")
        assert marked.is_visible()
        assert marked.all_text_contents() == [excerpt.texts[0].replace(" ", "·")]
        assert "".join(side.locator(".before").all_text_contents()).endswith("the·cat")


@pytest.mark.parametrize("key", ["keyboard", "wheel"])
def test_a_long_rollout_scrolls_with_few_elements(open_page: Open, key: str, tmp_path: Path) -> None:
    page = open_page(long_rollout(128_000, turns=8))
    assert (tmp_path / "rollout.html").stat().st_size < 128_000 * 32
    elements = "document.querySelectorAll('*').length"
    most, at_end = 0, False
    page.hover("#stream")
    page.focus("#stream")
    for _ in range(400):
        if key == "wheel":
            page.mouse.wheel(0, 6000)
        else:
            page.keyboard.press("j")
        page.evaluate("new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame))")
        most = max(most, page.evaluate(elements))
        at_end = page.evaluate(
            "(s => s.scrollTop + s.clientHeight >= s.scrollHeight - 2)(document.querySelector('#stream'))"
        )
        if at_end or (key == "keyboard" and "turn 7" in page.text_content("#place")):
            break
    else:
        pytest.fail("the end was not reached")
    assert "turn 7" in page.text_content("#place")
    assert 500 < most < 6000


TEXTS = """nodes => Object.fromEntries(nodes.map((node) =>
    [node.dataset.block, [...node.querySelectorAll(".token")].map((token) => token.textContent).join("")]))"""


def test_nothing_is_missing_between_the_blocks(open_page: Open) -> None:
    body = long_rollout(6000, turns=3)
    page = open_page(body)
    seen: dict[str, str] = {}
    for _ in range(100):
        seen |= page.locator("#stream .tokens").evaluate_all(TEXTS)  # at once: scrolling draws them anew
        page.evaluate("document.querySelector('#stream').scrollBy(0, 500)")
        page.evaluate("new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame))")
    text = "".join(seen[block] for block in sorted(seen, key=int))
    segments = inspect_run(body, tokenizer=TOKENIZER).segments()
    assert text.replace("↵\n", "\n") == "".join(piece for segment in segments for piece in segment.texts or ())


def test_search(open_page: Open) -> None:
    items = [turn(ids("the cat " * 2000 + "sat\n" * 1000), ids("naïve tea"), content="a message about 東京")]
    page = open_page(answer(*items))
    page.keyboard.press("/")
    page.keyboard.type("NAÏVE")
    await_found(page, "1 of 1")
    assert "naïve" in "".join(page.locator("#stream .hit.current").all_text_contents())
    assert page.locator("#stream .hit.current").first.is_visible()
    page.fill("#query", "cat")
    await_found(page, "1 of 2,000")
    page.keyboard.press("Shift+Enter")
    assert page.text_content("#found") == "2,000 of 2,000"
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    assert page.text_content("#found") == "1 of 2,000"
    page.fill("#query", "東京")
    await_found(page, "1 of 1")
    assert page.locator("#conversation mark").text_content() == "東京"
    page.fill("#query", "elephant")
    await_found(page, "not found")
    assert page.locator(".hit").count() == 0


def test_ids_can_be_searched_without_a_tokenizer(open_page: Open) -> None:
    page = open_page(answer(turn([1111, 2222], [3333])), tokenizer=None)
    page.fill("#query", "2222")
    await_found(page, "1 of 1")
    assert page.locator(".hit.current").all_text_contents() == ["2222"]


def test_the_keyboard(open_page: Open) -> None:
    page = open_page(long_rollout(20_000, turns=5))
    place = page.locator("#place")

    def press(*keys: str) -> str:
        for key in keys:
            page.keyboard.press(key)
        return place.text_content().split(" · ")[0]

    assert press("j", "j") == "turn 2"
    assert press("k") == "turn 1"
    assert press("G") == "turn 4"
    assert press("g") == "turn 0"
    press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert page.locator(".looked-at").count() == 1
    assert "prompt: context" in page.text_content("#token")
    assert "position 0 · turn 0" in page.text_content("#token")
    press("?")
    assert page.locator("dialog").is_visible()
    for key in page.locator("dialog kbd").all_text_contents():
        assert key in "jkdDgGnNmt/?→←"
    press("Escape")
    assert not page.locator("dialog").is_visible()
    assert press("m", "j") == "turn 1"
    assert not page.locator("#conversation").is_visible()
    press("m")
    assert not page.locator("#stream").is_visible()
    press("m")
    assert page.locator("#stream").is_visible()


def test_a_turn_of_the_messages_leads_to_its_tokens(open_page: Open) -> None:
    page = open_page(long_rollout(20_000, turns=5))
    page.click("#conversation .go >> text=Turn 3")
    assert page.text_content("#place").startswith("turn 3 ")
    assert page.text_content(".go.now") == "Turn 3clean"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_text_can_be_read(open_page: Open, scheme: str, size: tuple[int, int]) -> None:
    said = ids("the cat sat on the mat and tea")
    log_probs = [None, *itertools.islice(itertools.cycle([-0.01, -0.3, -1, -2, -4, -9]), len(said) - 1)]
    changed = ids("the cat sat on the mat and")
    items = [turn(ids("the cat"), said, log_probs), turn(ids("the cat") + changed, ids("milk"), content="milk")]
    page = open_page(answer(*items), size=size, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#conversation").is_visible() == (size == WIDE)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for _ in range(2):
        for selector, ratio in page.evaluate(CONTRASTS):
            assert ratio >= 4.5, selector
        page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == before


# WCAG's contrast of every text that is shown, by its element.
CONTRASTS = """() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = (color) => channels(color).slice(0, 3).map((value) => value / 255)
    .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
  const paper = (node) => {
    const color = getComputedStyle(node).backgroundColor;
    return (channels(color)[3] ?? 1) || !node.parentElement ? color : paper(node.parentElement);
  };
  return [...document.body.querySelectorAll("*")]
    .filter((node) => node.checkVisibility())
    .filter((node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
    .map((node) => {
      const [low, high] = [luminance(getComputedStyle(node).color), luminance(paper(node))].sort((a, b) => a - b);
      return [`${node.tagName}.${node.className}`, (high + 0.05) / (low + 0.05)];
    });
}"""


HOSTILE = "</script><script>document.title='taken'</script><!--<script><img src=http://127.0.0.1:9/x onerror=alert(1)>"


def test_what_a_model_writes_stays_text(open_page: Open) -> None:
    message = {"type": "message", "role": "assistant", "content": HOSTILE + "\x1b[31m\ud800"}
    call = {"type": "function_call", "name": HOSTILE, "arguments": '{"a": NaN}'}
    page = open_page(answer(message, turn([1], [2]) | call, {"type": "message", "role": "user", "content": "{{data}}"}))
    assert page.title() == "rollout · turnloom"
    said = page.text_content("#conversation")
    assert HOSTILE + "^[[31m\ufffd" in said
    assert '"a": "NaN"' in said
    assert "{{data}}" in said
    assert page.locator("img").count() == 0


def test_what_nobody_would_see_is_shown(open_page: Open) -> None:
    unseen = "a\u202eb\u2066c\u200b\ufeff\u2028\0"
    message = {"type": "message", "role": "user hidden \u202e", "content": unseen}
    page = open_page(answer(message, turn(ids(f"{unseen} tea"), ids("tea")), **{"m\u202e": 1.0}))
    shown = "a<U+202E>b<U+2066>c<U+200B><U+FEFF><U+2028>^@"
    assert page.locator("#conversation .said").first.inner_text() == shown
    assert page.locator("#conversation .message").first.evaluate("node => node.getBoundingClientRect().width") > 100
    assert shown + " tea" in page.locator("#stream").inner_text().replace("\n", "")
    assert "\u202e" not in page.locator("body").inner_text()


BEYOND_ITS_EDGE = """(pane) => {
    const right = (node) => node.getBoundingClientRect().right;
    const beyond = [...pane.querySelectorAll("*")].filter((node) => right(node) > right(pane) + 1);
    return beyond.map((node) => node.outerHTML.slice(0, 80));
}"""


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_a_word_without_end_stays_within_the_page(open_page: Open, size: tuple[int, int]) -> None:
    word = "w" * 200_000
    call = {"type": "function_call", "name": word, "arguments": word}
    body = answer(
        {"type": "message", "role": word[:5000], "content": word}, turn([1], [2]) | call, **{word[:5000]: 1.0}
    )
    page = open_page(body, size=size, tokenizer=None)
    if size == NARROW:
        page.keyboard.press("m")
    page.locator("#conversation button.more").first.click()
    pane = page.locator("#conversation")
    for place in ("0", "node.scrollHeight"):
        pane.evaluate(f"node => {{ node.scrollTop = {place}; }}")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert pane.evaluate(BEYOND_ITS_EDGE) == []
    assert page.locator("dt", has_text="www").is_visible()


def test_an_answer_without_tokens_has_its_messages(open_page: Open) -> None:
    page = open_page((DATA / "no_ids.json").read_bytes())
    for key in ("j", "d", "G", "ArrowRight", "n", "t"):
        page.keyboard.press(key)
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.locator(".nothing").is_visible()
    said = page.locator("#conversation .said").first.text_content().split()[0]
    page.fill("#query", said)
    page.locator("#conversation mark").first.wait_for()


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.json")))
def test_every_body_opens(open_page: Open, name: str) -> None:
    body = (DATA / name).read_bytes()
    page = open_page(body, tokenizer=None, fork_threshold_tokens=2)
    for _ in range(8):
        page.keyboard.press("j")
    tokens = page.locator("#stream .token").count()
    assert bool(tokens) == bool(inspect_run(body).turns)
    assert page.locator("#reason").is_visible() == (name == "no_ids.json")
