#!/usr/bin/env python3
"""Checks what docs/README.md asks of every page and a program can see: for whom it is, and words of the glossary linked where they come first.
Sources, tests and scripts that a page names by their path from the root are there.

usage: pages.py          the checks
       pages.py --link   writes the links that are missing
Run from the root of a checkout."""
import pathlib
import re
import sys

GLOSSARY = pathlib.Path("docs/glossary.md")
# Lists of all pages, of words, of letters, and what the program writes.
WITHOUT_LINKS = {"README.md", "glossary.md", "shapes.md", "config.md"}
# Words of the glossary that mean nothing else on our pages, as they are written.
WORDS = {
    "axis": r"ax[ei]s", "bubble": r"bubbles?", "flat buffer": r"flat buffers?", "collective": r"collectives?",
    "micro-batch": r"micro-batch(?:es)?", "hook": r"hooks?", "mesh": r"mesh", "placement": r"placements?", "rank": r"ranks?",
    "region": r"regions?", "run folder": r"run folders?", "slice": r"slices?", "stage": r"stages?", "unit": r"units?",
}
# The same letters with another meaning: LoRA's rank, ZeRO's stages, Python's slices, units of time, bytes, digits and processors.
OTHERS = (r"alpha / rank|rank\^0\.5|(?:DeepSpeed|ZeRO) stages?|slices and the methods|files, units;|the same unit|the unit's digits|"
          r"8-bit units|one unit of the last")
# Made by the build.
MADE = {"tessera/version.h"}
# What is no prose, is linked already, or means something else.
SKIPPED = re.compile(rf"(?ms)^```.*?^```|<!--.*?-->|^#.*?$|`[^`\n]*`|!?\[[^\]]*\]\([^)]*\)|{OTHERS}")


def explained_by():
    """Word of the glossary -> the page that explains it, where there is one."""
    pages = {}
    for line in GLOSSARY.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) < 3:
            continue
        for word in cells[0].split(", "):
            pages[word] = re.findall(r"\(([a-z_]+\.md)\)", cells[2])
    return pages


def first_use(text, pattern):
    """Where the word first stands, and whether it is linked there; none: it does not stand in the page's prose."""
    word = re.compile(rf"(?i)(?<![\w./-])(?:{pattern})(?![\w/-])")
    end = 0
    for skipped in [*SKIPPED.finditer(text), None]:
        found = word.search(text, end, skipped.start() if skipped else len(text))
        if found:
            return found, False
        if skipped is None:
            return None, False
        link = re.match(r"\[([^\]]*)\]\([^)]*\)", skipped.group())
        if link and word.search(link.group(1)):
            return skipped, True
        end = skipped.end()
    return None, False


def named_files(text):
    """Paths below the folders of sources, `a/{b,c}.h` as two; `*` stands for any name."""
    for path in re.findall(r"(?<![\w/.])(?:tessera|tests|examples|bench|recipes|cmake)/[\w./*{},-]*\.(?:h|cpp|cu|sh|py|yaml|json|def|cmake)\b", text):
        if braces := re.search(r"\{(.*?)\}", path):
            yield from (path.replace(braces.group(), name) for name in braces.group(1).split(","))
        else:
            yield path


def check(page, explained, link):
    text = page.read_text(encoding="utf-8")
    wrong = [f"{page}: {path} is not there" for path in sorted(set(named_files(text)))
             if "NAME" not in path and path not in MADE and not list(pathlib.Path().glob(path))]
    prose = re.sub(r"(?s)<!--.*?-->", "", text).split("\n", 1)[1].lstrip()
    if page.name != "README.md" and not re.match(r"For (those|whoever) ", prose):
        wrong.append(f"{page}: its first sentence does not say for whom it is (\"For those who ..\")")
    if page.name in WITHOUT_LINKS:
        return wrong
    for name, pattern in WORDS.items():
        if page.name in explained[name]:
            continue
        found, linked = first_use(text, pattern)
        if found is None or linked:
            continue
        if link:
            text = f"{text[:found.start()]}[{found.group()}](glossary.md){text[found.end():]}"
        else:
            line = text.count("\n", 0, found.start()) + 1
            wrong.append(f"{page}:{line}: '{found.group()}' comes first here and is not linked to the glossary")
    if link:
        page.write_text(text, encoding="utf-8")
    return wrong


def main():
    explained = explained_by()
    unknown = [f"{GLOSSARY}: no '{word}', which pages.py looks for" for word in WORDS if word not in explained]
    wrong = unknown or [line for page in sorted(pathlib.Path("docs").glob("*.md")) for line in check(page, explained, "--link" in sys.argv)]
    print("\n".join(wrong) or "every page says for whom it is, links its words and names files that are there")
    return 1 if wrong else 0


sys.exit(main())
