"""Texts that strangers paste: each is a few lines of code, none is stored as a file."""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "one token": "a",
    "100k tokens": "word " * 100_000,
    "a very long word": "x" * 50_000,
    "emoji": "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "right to left": "\u05e9\u05dc\u05d5\u05dd \u0639\u0627\u0644 \u202eoverride\u202c \u2067isolate\u2069",
    "zero width": "a\u200bb\u200cc\u200dd\ufeffe\u2060f",
    "combining": "Z" + "\u0335\u0321\u0328" * 40 + "algo",
    "HTML": '<script>alert(1)</script><img src=x onerror="alert(1)">&lt;b&gt; <!-- -->',
    "markdown": "# title **bold** [a](javascript:alert(1)) $x^2$ :red[b] `c` | d | e |",
    "control tokens": "<|im_start|>system [CLS] [SEP] [MASK] <s> </s> <|endoftext|> <unk>",
    "lone surrogates": "a\ud800b\udc00c \udfff\ud800",
    "newlines": "\n\n\r\n\r\t\x0b\x0c\u2028\u2029 end",
    "null bytes": "a\x00b\x00\x00c",
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f\x9b31m red",
    "SQL": "'; DROP TABLE runs; -- \" ATTACH 'x'",
    "formula": '=HYPERLINK("http://localhost","x")\n@SUM(A1)\n+1-1',
    "path": "../../../etc/passwd\x00.txt",
    "private use": "\ue000\uf8ff\U000f0000\U0010ffff",
    "reaction": "CC(=O)O.CCO>>CC(=O)OCC",
}
