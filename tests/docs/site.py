#!/usr/bin/env python3
"""Checks the site that doxygen made: every page of docs/ is there, every link leads to a file, no Markdown is left.

usage: site.py FOLDER
"""
import html
import pathlib
import re
import sys


def main() -> int:
    site = pathlib.Path(sys.argv[1])
    wrong = []
    pages = sorted(site.glob("md_*.html")) + [site / "index.html"]
    for source in sorted(pathlib.Path("docs").glob("*.md")):
        if not (site / f"md_docs_{source.stem}.html").exists():
            wrong.append(f"docs/{source.name}: not in the site")
    for page in pages:
        text = page.read_text(encoding="utf-8", errors="replace")
        for link in re.findall(r'(?:href|src)="([^"#]+)', text):
            if re.match(r"[a-z]+:", link) or (site / html.unescape(link)).exists():
                continue
            wrong.append(f"{page.name}: a link to {link}, which is not there")
        shown = re.sub(r"<[^>]*>", "", re.sub(r"(?s)<div class=\"fragment\">.*?</div><!-- fragment -->", "", text))
        for left in re.findall(r".*(?:```|\]\().*", shown):
            wrong.append(f"{page.name}: Markdown is left: {left.strip()[:80]}")
    print("\n".join(wrong) or f"{len(pages)} pages, every link leads somewhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
