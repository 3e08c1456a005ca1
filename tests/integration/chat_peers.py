"""Chat templates beside Python's Jinja2, set as transformers sets it: python3 tests/integration/chat_peers.py [TEMPLATES]

- Small templates, one for each construct, and random conversations through every template of tests/fixtures/chat/templates, of
  tests/fixtures/tokenizers and of the folder TEMPLATES: the same text, the same {% generation %} spans, or an error of both.
- Where X.jinja has a twin X_training.jinja (as in TRL's trl/chat_templates): the assistant's bytes by provenance in X are those in
  the twin's {% generation %} blocks, wherever both write the same text.

Needs a build (BUILD, default build/release; or PROBE, the path of tessera_chat_probe) and a Python with jinja2. Ends with 77 without."""
import json
import os
import pathlib
import random
import subprocess
import sys
import time

try:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("chat_peers: skipped: no jinja2 in this Python; pip install jinja2")
    sys.exit(77)

os.environ["TZ"] = "UTC"
time.tzset()
NOW = 1764000000
PROBE = os.environ.get("PROBE", os.environ.get("BUILD", "build/release") + "/bin/tessera_chat_probe")
SEED = int(os.environ.get("SEED", "1"))
CONVERSATIONS = int(os.environ.get("CONVERSATIONS", "60"))


class Generation(Extension):
    """Marks what a generation block writes by two characters that no text has, so that a block in a macro counts, too."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller):
        return "\ue000" + caller() + "\ue001"


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = lambda form: time.strftime(form, time.localtime(NOW))
compiled = {}


def reference(case):
    try:
        source = case["template"]
        if source not in compiled:
            compiled[source] = environment.from_string(source)
        marked = compiled[source].render(messages=case["messages"], tools=case["tools"], documents=case["documents"],
                                         add_generation_prompt=case["add_generation_prompt"], **case["variables"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    text, spans, begin = bytearray(), [], None
    for character in marked:
        if character == "\ue000":
            begin = len(text)
        elif character == "\ue001":
            if spans and spans[-1][1] == begin:
                spans[-1][1] = len(text)
            elif begin < len(text):
                spans.append([begin, len(text)])
        else:
            text += character.encode()
    return {"text": text.decode(), "generated": spans}


class Probe:
    def __init__(self):
        self.process = subprocess.Popen([PROBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, case):
        self.process.stdin.write(json.dumps({**case, "now": NOW}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


WORDS = ["Hello", "  two  ", "\n\nlines\n", "Zürich 東京", "<|im_end|>", "<think>", "a</think>\n\nb", "'quoted' \"both\"", "\\n {{ x }} {% y %}", "😀",
         "<tool_response>", "7", "", "tab\t", "[INST]", "\u2028", "x" * 40]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "description": "A \"city\"", "enum": ["Bern", "Zürich"]},
                                               "days": {"type": "integer", "default": 3}, "units": {"type": "array", "items": {"type": "string"}}},
              "required": ["city"]}


def random_text(r):
    return "".join(r.choice(WORDS) for _ in range(r.randint(1, 3)))


def random_value(r, depth=0):
    kind = r.randint(0, 7 if depth < 2 else 5)
    if kind == 6:
        return [random_value(r, depth + 1) for _ in range(r.randint(0, 3))]
    if kind == 7:
        return {random_text(r): random_value(r, depth + 1) for _ in range(r.randint(0, 3))}
    return [random_text(r), r.randint(-99, 99), r.random() * 10 ** r.randint(-9, 20), True, None, 1e16][kind]


def random_tool(r):
    return {"type": "function", "function": {"name": r.choice(["weather", "search"]), "description": random_text(r),
                                             "parameters": PARAMETERS if r.random() < 0.8 else {"type": "object", "properties": {}}}}


def tool_call(r, i):
    arguments = {"city": random_text(r), **({"more": random_value(r)} if r.random() < 0.4 else {})}
    if r.random() < 0.1:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call{i:05d}", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def content(r, as_parts):
    text = random_text(r)
    return [{"type": "text", "text": text}] if as_parts else text


def random_messages(r, as_parts, plain):
    messages = []
    if r.random() < 0.5:
        messages.append({"role": "system", "content": content(r, as_parts)})
    for turn in range(r.randint(1, 3)):
        messages.append({"role": "user", "content": content(r, as_parts)})
        if not plain and r.random() < 0.3:
            call = {"role": "assistant", "content": r.choice(["", random_text(r)]), "tool_calls": [tool_call(r, i) for i in range(r.randint(1, 2))]}
            messages.append(call)
            messages += [{"role": "tool", "name": "weather", "tool_call_id": each["id"], "content": random_text(r)} for each in call["tool_calls"]]
        answer = {"role": "assistant", "content": content(r, as_parts)}
        if not plain and r.random() < 0.3:
            answer[r.choice(["reasoning_content", "thinking"])] = random_text(r)
        messages.append(answer)
    if r.random() < 0.4:
        messages.pop()
    if r.random() < 0.05:
        messages.append({"role": "narrator", "content": "?"})
    return messages


def random_case(r, template, plain=False):
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    if r.random() < 0.3:
        variables["enable_thinking"] = r.random() < 0.5
    return {"template": template, "messages": random_messages(r, r.random() < 0.15, plain), "documents": None,
            "tools": [random_tool(r) for _ in range(r.randint(1, 2))] if not plain and r.random() < 0.4 else None,
            "add_generation_prompt": r.random() < 0.4, "variables": variables}


SNIPPETS = [line for line in (pathlib.Path(__file__).parent / "chat_snippets.txt").read_text().splitlines() if line and not line.startswith("## ")]
failures = 0


def differ(what, case, theirs, ours):
    global failures
    failures += 1
    if failures <= 12:
        print(f"chat_peers: {what}: {json.dumps(case)[-600:] if what == 'snippet' else ''}\n  theirs {json.dumps(theirs)[:900]}\n  ours   {json.dumps(ours)[:900]}")


def check_same(what, case, probe):
    theirs, ours = reference(case), probe(case)
    same = "error" in ours if "error" in theirs else all(theirs[key] == ours.get(key) for key in ("text", "generated"))
    if not same:
        differ(what, case, theirs, ours)
    return "error" not in theirs


def merged(spans):
    result = []
    for begin, end in spans:
        if begin == end:
            continue
        if result and result[-1][1] == begin:
            result[-1][1] = end
        else:
            result.append([begin, end])
    return result


def check_twin(name, original, twin, probe):
    """Counts conversations in which both templates write the same, and those of them with the same mask."""
    r = random.Random(SEED)
    same_text = same_mask = 0
    example = ""
    for i in range(4 * CONVERSATIONS):
        case = random_case(r, original, plain=i % 2 == 0)
        case["messages"] = [m for m in case["messages"] if m["role"] != "narrator"]
        case["add_generation_prompt"] = False
        theirs, ours = reference({**case, "template": twin}), probe(case)
        if "error" in theirs or "error" in ours or theirs["text"] != ours["text"]:
            continue
        same_text += 1
        if merged(theirs["generated"]) == merged(ours["assistant"]):
            same_mask += 1
        elif not example:
            text = theirs["text"].encode()
            show = lambda spans: [text[b:e].decode(errors="replace")[:90] for b, e in spans]
            example = f"    twin {show(theirs['generated'])!r}\n    ours {show(ours['assistant'])!r}"
    print(f"  {name}: {same_mask} of {same_text} masks equal" + (f"\n{example}" if example and os.environ.get("VERBOSE") else ""))
    return same_text > 0 and same_mask == same_text


def record():
    """Writes tests/fixtures/chat/expected.jsonl."""
    folder = pathlib.Path("tests/fixtures/chat")
    r = random.Random(22)
    with open(folder / "expected.jsonl", "w") as out:
        for path in sorted((folder / "templates").glob("*.jinja")):
            for i in range(14):
                case = random_case(r, path.read_text(), plain=i % 3 == 0)
                result = reference(case)
                case.update(template=path.name, now=NOW)
                case.update({"error": result["error"]} if "error" in result else {"rendered": result["text"], "generated": result["generated"]})
                out.write(json.dumps(case) + "\n")
    return 0


def main():
    if sys.argv[1:] == ["--record"]:
        return record()
    if not os.path.exists(PROBE):
        print(f"chat_peers: skipped: no {PROBE}; ./dev build")
        return 77
    probe = Probe()
    messages = [{"role": "user", "content": "Hi  Ünï\n"}, {"role": "assistant", "content": "Yes", "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": [1.5, None, True]}}}]}]
    for snippet in SNIPPETS:
        check_same("snippet", {"template": snippet.replace("⏎", "\n"), "messages": messages, "tools": None, "documents": None,
                               "add_generation_prompt": True, "variables": {"bos_token": "<s>", "n": 3, "f": 2.5, "empty": "", "nothing": None}}, probe)
    print(f"chat_peers: {len(SNIPPETS)} snippets, {failures} differ")
    folders = [pathlib.Path("tests/fixtures/chat/templates")] + [pathlib.Path(argument) for argument in sys.argv[1:]]
    templates = {str(path): path.read_text() for folder in folders for path in sorted(folder.glob("*.jinja"))}
    for path in sorted(pathlib.Path("tests/fixtures/tokenizers").glob("*/tokenizer_config.json")):
        config = json.loads(path.read_text())
        if "chat_template" in config:
            templates[str(path)] = config["chat_template"]
    r = random.Random(SEED)
    for name, template in templates.items():
        rendered = sum(check_same(name, random_case(r, template, plain=i % 3 == 0), probe) for i in range(CONVERSATIONS))
        print(f"chat_peers: {name}: {CONVERSATIONS} conversations, {rendered} rendered")
    pairs = [(name, name.replace(".jinja", "_training.jinja")) for name in templates if name.replace(".jinja", "_training.jinja") in templates and name.endswith(".jinja")]
    if pairs:
        print("chat_peers: masks by provenance beside the training twins")
        equal = sum(check_twin(pathlib.Path(a).stem, templates[a], templates[b], probe) for a, b in pairs)
        print(f"chat_peers: {equal} of {len(pairs)} pairs equal in every conversation")
    print(f"chat_peers: {failures} differences")
    return 1 if failures else 0


sys.exit(main())
