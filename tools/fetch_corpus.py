#!/usr/bin/env python3
"""Turns unpacked documentation packages into plain text: the second half of fetch_corpus.sh.

Usage: fetch_corpus.py LIST UNPACKED OUT

LIST has the packages (models/pocket/corpus.tsv), UNPACKED a folder PACKAGE.files for each. A document is one page, or
in a dictionary the words that begin alike. Documents are told apart into train and held-out ones by a hash of their
name, so a document stays where it is when others come and go.
"""
import collections
import gzip
import hashlib
import html
import html.parser
import json
import pathlib
import re
import shutil
import sys
import xml.etree.ElementTree

HELDOUT_SHARE = 8  # of 256
DOCUMENT_BYTES_MIN = 200  # shorter pages are menus and redirections
# A line is boilerplate when so many documents of its source have it, and at least this share of them.
BOILERPLATE_DOCUMENTS = 12
BOILERPLATE_SHARE = 0.02
BOILERPLATE_LENGTH = 12  # shorter lines are headings and signs
SKIPPED_STEMS = {"genindex", "search", "py-modindex", "bookindex", "toc", "licenses", "license"}


class PageText(html.parser.HTMLParser):
    """The text of a page, without what surrounds it: navigation, contents, footers."""

    SKIPPED = {"script", "style", "head", "nav", "header", "footer", "svg", "button", "form"}
    SKIPPED_CLASSES = {
        "toc", "navheader", "navfooter", "related", "sphinxsidebar", "footer", "headerlink", "index", "navigation",
        "titlepage-date", "footnotes", "docnav", "previous", "next", "legalnotice", "breadcrumbs", "tocstub",
    }
    VOID = {"br", "hr", "img", "meta", "link", "input", "col", "area", "base", "wbr", "source"}
    BLOCKS = {
        "p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "li", "ul", "ol", "dl", "dt", "dd", "table", "tr", "pre",
        "blockquote", "section", "article", "hr", "main", "body",
    }

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts = []
        self.open = []  # (tag, whether it and all within it is skipped)
        self.pre = 0

    def is_skipping(self):
        return bool(self.open) and self.open[-1][1]

    def handle_starttag(self, tag, attributes):
        if tag == "br":
            self.parts.append("\n")
        if tag in self.VOID:
            return
        values = dict(attributes)
        classes = set((values.get("class") or "").split())
        skips = (self.is_skipping() or tag in self.SKIPPED or bool(classes & self.SKIPPED_CLASSES)
                 or values.get("role") in ("navigation", "search"))
        self.open.append((tag, skips))
        self.pre += tag == "pre"
        if tag in self.BLOCKS:
            self.parts.append("\n\n" if tag not in ("li", "dd", "tr") else "\n")
        elif tag in ("td", "th"):
            self.parts.append("  ")

    def handle_endtag(self, tag):
        if tag not in [name for name, _ in self.open]:
            return
        while True:  # what was left open inside ends with it
            name, _ = self.open.pop()
            self.pre -= name == "pre"
            if name == tag:
                break
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data):
        if not self.is_skipping():
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def from_html(text):
    page = PageText()
    page.feed(text)
    page.close()
    return "".join(page.parts)


def from_rst(text):
    """Sphinx sources: directives, comments, tables' frames and inline marks go, words and code stay."""
    out = []
    skipped_indent = None  # of a directive whose body goes too
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        if skipped_indent is not None:
            if not line.strip() or indent > skipped_indent:
                continue
            skipped_indent = None
        marker = re.match(r"\s*\.\. (?:([\w:.-]+)::|\[|_|\||)", line)
        if marker:
            name = (marker.group(1) or "").split(":")[-1]
            if name in ("note", "warning", "tip", "important", "caution", "seealso", "versionadded", "versionchanged"):
                rest = line.split("::", 1)[1].strip()
                if rest:
                    out.append(" " * indent + rest)
            elif name in ("function", "method", "class", "data", "attribute", "option", "exception", "module", "c",
                          "macro", "type", "describe", "cmdoption", "envvar"):
                out.append(" " * indent + line.split("::", 1)[1].strip())
            elif name in ("code-block", "code", "highlight", "sourcecode", "literalinclude", "testcode", "doctest"):
                pass
            elif name or line.strip() == ".." or not line.strip().startswith(".. ["):
                skipped_indent = indent
            continue
        if re.fullmatch(r"\s*:[\w -]+:(?!`).*", line) and not line.startswith(" " * 12):
            continue  # an option of a directive, or a field
        if re.fullmatch(r"\s*([=\-~^\"'`#*+.:_])\1{2,}\s*", line) or re.fullmatch(r"\s*[+|=\- ]*[+=\-]{4}[+|=\- ]*", line):
            continue  # underlines of titles, frames of tables
        out.append(line)
    joined = "\n".join(out)
    joined = re.sub(r":[\w:+-]+:`~?!?([^`<]*?)\s*(?:<[^`>]*>)?`", r"\1", joined)  # :ref:`text <target>`
    joined = re.sub(r"``(.+?)``", r"\1", joined)
    joined = re.sub(r"`([^`<\n]+?)\s*(?:<[^`>]*>)?`__?", r"\1", joined)
    joined = re.sub(r"\*\*(\S(?:.*?\S)?)\*\*", r"\1", joined)
    return re.sub(r"::$", ":", joined, flags=re.MULTILINE)


# Behind every entry: where it comes from.
DICTIONARY_ORIGIN = re.compile(r"\s*\[[^\]]*(?:Webster|WordNet|PJC|Century|-[a-z]+)[^\]]*\]\s*")
POD_ESCAPES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/"}


def pod_code(match):
    letter, text = match.group(1), (match.group(2) if match.group(2) is not None else match.group(3)).strip()
    if letter == "E":
        return POD_ESCAPES.get(text, html.unescape("&%s;" % text))
    if letter in "XZ":
        return ""
    return text.split("|")[0] if letter == "L" else text


def from_pod(text):
    out = []
    skips = False
    for paragraph in re.split(r"\n\s*\n", text):
        command = re.match(r"=(\w+)\s*(.*)", paragraph, flags=re.DOTALL)
        if command:
            name, rest = command.groups()
            skips = name in ("begin", "for") or (skips and name != "end")
            if name.startswith("head") or (name == "item" and rest.strip(" *\n")):
                paragraph = rest
            else:
                continue
        if skips:
            continue
        if not paragraph.startswith((" ", "\t")):
            for _ in range(4):  # codes nest
                paragraph = re.sub(r"\b([BCEFILSXZ])(?:<<+\s(.*?)\s>>+|<([^<>]*)>)", pod_code, paragraph, flags=re.DOTALL)
            paragraph = re.sub(r"\s*\n\s*", " ", paragraph)
        out.append(paragraph)
    return "\n\n".join(out)


def from_mallard(text):
    """GNOME help: the blocks' texts; <info> is about the page."""
    blocks = {"p", "title", "item", "td", "screen", "code", "desc"}

    def visit(element, out):
        tag = element.tag.split("}")[-1] if isinstance(element.tag, str) else ""
        if not tag or tag == "info":
            return
        if tag in blocks:
            out.append("\n" if tag == "item" else "\n\n")
        out.append(re.sub(r"\s+", " ", element.text or ""))
        for child in element:
            visit(child, out)
            out.append(re.sub(r"\s+", " ", child.tail or ""))

    out = []
    visit(xml.etree.ElementTree.fromstring(text), out)
    return "".join(out)


def from_dictionary(text):
    """dictd files: a headword at the start of a line, its entry indented. Gives (name, text) by first letters."""
    groups = collections.defaultdict(list)
    letters = "other"
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.split("\n") if not DICTIONARY_ORIGIN.fullmatch(line)]
        if lines and lines[0][:1].isalnum():
            letters = re.sub(r"[^a-z]", "", lines[0].lower())[:3] or "other"
        paragraphs = []
        for line in lines:  # lines of one paragraph are joined; a headword begins one
            if paragraphs and line.startswith(" ") and not re.match(r"\s+(?:\d+\.|\([a-z]\)|-) ", line):
                paragraphs[-1] += " " + line.strip()
            else:
                paragraphs.append(line.strip())
        groups[letters].append(re.sub(r"\{([^{}]*)\}", r"\1", "\n".join(paragraphs)))
    return sorted((name, "\n\n".join(blocks)) for name, blocks in groups.items())


def from_wordnet(text):
    """data.*: a word, its synonyms and what they mean, one sentence each. Gives (name, text) by first letters."""
    groups = collections.defaultdict(list)
    for line in text.split("\n"):
        if line.startswith("  ") or "|" not in line:
            continue  # the licence at the top
        fields, gloss = line.split("|", 1)
        fields = fields.split()
        words = [re.sub(r"\(\w+\)$", "", fields[4 + 2 * i]).replace("_", " ") for i in range(int(fields[3], 16))]
        letters = re.sub(r"[^a-z]", "", words[0].lower())[:2] or "other"
        groups[letters].append("%s: %s." % (", ".join(words), gloss.strip()))
    return sorted((name, "\n".join(lines)) for name, lines in groups.items())


PAGES = {"html": from_html, "rst": from_rst, "pod": from_pod, "mallard": from_mallard}
COLLECTIONS = {"dict": from_dictionary, "wordnet": from_wordnet}


def read_text(path):
    data = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        data = gzip.decompress(data)
    declared = re.search(rb"charset=[\"']?([\w-]+)|^=encoding\s+(\S+)", data[:4096], flags=re.MULTILINE)
    encoding = next((name for name in declared.groups() if name), b"utf-8").decode() if declared else "utf-8"
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        return data.decode("latin-1")


def tidy(text):
    text = text.replace("\r\n", "\n").replace("\xa0", " ").replace("\u200b", "").replace("¶", "").expandtabs(8)
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    text = "".join(c for c in text if c == "\n" or c >= " ")
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def is_page(path, package):
    parts = path.parts
    stem = path.name.split(".")[0]
    return "translations" not in parts and stem not in SKIPPED_STEMS and stem != package  # that one is all pages again


def documents_of(row, folder):
    """(name, text) of all documents of one package."""
    kind, pattern = row["format"], row["files"]
    paths = sorted(path for path in folder.glob(pattern) if path.is_file() and is_page(path.relative_to(folder), row["package"]))
    if not paths:
        sys.exit("fetch_corpus: %s %s has no file %s; mend models/pocket/corpus.tsv" % (row["package"], row["version"], pattern))
    fixed = pathlib.PurePath(pattern.split("*")[0])
    fixed = fixed if pattern.split("*")[0].endswith("/") else fixed.parent
    for path in paths:
        name = "%s/%s" % (row["package"], path.relative_to(folder / fixed).as_posix())
        if kind in PAGES:
            yield name, tidy(PAGES[kind](read_text(path)))
        else:
            for part, text in COLLECTIONS[kind](read_text(path)):
                yield "%s/%s" % (name, part), tidy(text)


def without_boilerplate(documents):
    """Drops the lines that many documents of a source share, and documents that are then short or there already."""
    counts = collections.Counter()
    for _, text in documents:
        counts.update({line.strip() for line in text.split("\n") if len(line.strip()) > BOILERPLATE_LENGTH})
    limit = max(BOILERPLATE_DOCUMENTS, BOILERPLATE_SHARE * len(documents))
    seen = set()
    for name, text in documents:
        kept = tidy("\n".join(line for line in text.split("\n") if counts[line.strip()] < limit))
        digest = hashlib.sha256(kept.encode()).digest()
        if len(kept.encode()) >= DOCUMENT_BYTES_MIN and digest not in seen:
            seen.add(digest)
            yield name, kept


def is_heldout(name):
    return hashlib.sha256(name.encode()).digest()[0] < HELDOUT_SHARE


def write_source(out, source, documents):
    splits = {"train": [], "heldout": []}
    for name, text in documents:
        splits["heldout" if is_heldout(name) else "train"].append((name, text))
    entry = {}
    for split, chosen in splits.items():
        file = "%s.%s.jsonl" % (source, split)
        with open(out / file, "w", encoding="utf-8") as lines:
            for name, text in chosen:
                lines.write(json.dumps({"name": name, "text": text}, ensure_ascii=False) + "\n")
        entry[split] = {"file": file, "documents": len(chosen), "bytes": sum(len(text.encode()) for _, text in chosen)}
    return entry


def main():
    list_path, unpacked, out = (pathlib.Path(argument) for argument in sys.argv[1:4])
    keys = ("source", "package", "version", "sha256", "format", "files", "licence")
    rows = [dict(zip(keys, line.split("\t"))) for line in list_path.read_text(encoding="utf-8").splitlines()
            if line and not line.startswith("#")]
    (out / "licences").mkdir(exist_ok=True)
    sources = []
    for source in dict.fromkeys(row["source"] for row in rows):
        documents = []
        packages = []
        for row in (row for row in rows if row["source"] == source):
            folder = unpacked / (row["package"] + ".files")
            shutil.copyfile(folder / "usr/share/doc" / row["package"] / "copyright", out / "licences" / row["package"])
            documents += documents_of(row, folder)
            packages.append({key: row[key] for key in ("package", "version", "sha256", "licence")})
        entry = {"name": source, "packages": packages, **write_source(out, source, list(without_boilerplate(documents)))}
        sources.append(entry)
        print("fetch_corpus: %-16s %6d documents %6.1f MB, held out %5d documents %5.2f MB" % (
            source, entry["train"]["documents"], entry["train"]["bytes"] / 1e6, entry["heldout"]["documents"],
            entry["heldout"]["bytes"] / 1e6), file=sys.stderr)
    manifest = json.dumps({"format": 1, "sources": sources}, indent=1, ensure_ascii=False)
    (out / "manifest.json").write_text(manifest + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
