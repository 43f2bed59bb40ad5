#!/usr/bin/env python3
"""Tokens for smp-run --data from text files and a tokenizer in Hugging Face's form (tokenizer.json). Needs the package
`tokenizers` of PyPI.

    tokenize-text.py TOKENIZER.json TEXT... -o TOKENS.bin [--end TOKEN] [--whole]

writes the texts (UTF-8) one behind the other as a .bin with llm.c's header: uint16 if the vocabulary fits, else uint32.
It prints the size of the vocabulary, which is what a model's embedding needs as `rows`. No special tokens are put in
but the one that --end names, behind every text.

A text is cut behind ends of lines into pieces of about a MiB, so that memory does not grow with it. Where a cut would
change a token of the lines around it, another is taken. With some tokenizers every cut does (they put a space before all
that they are given, say): they need --whole, which takes a text as one piece.
"""
import argparse
import array
import os
import re
import sys

PIECE, MOST_PIECE, TRIES = 1 << 20, 1 << 22, 100
CUT = re.compile(r"\n(?=\S)")
MAGIC = {"H": (20240520, 1), "I": (20240801, 7)}  # llm.c's headers: 256 words of magic, version, tokens, zeroes
MOST = (1 << 32) - 1  # tokens that a header can say


def fail(message):
    sys.exit("tokenize-text: " + message)


def read_tokenizer(path):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        fail("no package `tokenizers`: pip install tokenizers")
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # what the package raises has no class of its own
        fail("%s: %s" % (path, error))


def vocabulary_size(tokenizer):
    """Ids may have gaps: the rows that an embedding needs, not the number of tokens."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def cut_shows(encode, text, cut):
    first = cut  # blank lines may be one token with what ends the last line of words
    while first > 0 and text[first - 1].isspace():
        first -= 1
    left = text[text.rfind("\n", 0, first) + 1:cut]
    right = text[cut:(text.find("\n", cut) + 1) or None]
    return encode(left) + encode(right) != encode(left + right)


def find_cut(encode, text):
    """Behind an end of line, as far back as it takes not to be seen; 0: nowhere."""
    cuts = [m.end() for m in CUT.finditer(text, max(0, len(text) - PIECE))]
    return next((cut for cut in cuts[:-TRIES - 1:-1] if not cut_shows(encode, text, cut)), 0)


def tokens_of(path, encode, whole):
    rest = ""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            while more := file.read(-1 if whole else PIECE):
                if rest:
                    rest += more
                    cut = find_cut(encode, rest)
                    if cut == 0 and len(rest) > MOST_PIECE:
                        fail("%s: with this tokenizer every cut changes tokens: expected --whole" % path)
                    yield encode(rest[:cut])
                    rest = rest[cut:]
                else:
                    rest = more
    except (OSError, UnicodeDecodeError) as error:
        fail("%s: %s" % (path, error))
    yield encode(rest)


def write(options, tokenizer):
    size = vocabulary_size(tokenizer)
    code = "H" if size <= 1 << 16 else "I"
    end = [] if options.end is None else [tokenizer.token_to_id(options.end)]
    if None in end:
        fail("--end: '%s' is no token of %s" % (options.end, options.tokenizer))

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    count, largest = 0, 0
    part = options.output + ".part"
    with open(part, "wb") as file:
        file.write(bytes(1024))
        for path in options.text:
            for ids in (*tokens_of(path, encode, options.whole), end):
                values = array.array(code, ids)
                count, largest = count + len(values), max(largest, max(values, default=0))
                if sys.byteorder == "big":
                    values.byteswap()
                values.tofile(file)
        if count > MOST:
            fail("%d tokens, expected at most %d for a file: write several" % (count, MOST))
        file.seek(0)
        for word in (*MAGIC[code], count):
            file.write(word.to_bytes(4, "little"))
    os.replace(part, options.output)
    read = sum(os.path.getsize(path) for path in options.text)
    print("%s: %d tokens (uint%d), %.2f bytes each, the largest is %d"
          % (options.output, count, 8 * array.array(code).itemsize, read / max(count, 1), largest))
    print("vocabulary: %d" % size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", metavar="TOKENIZER.json")
    parser.add_argument("text", nargs="+", metavar="TEXT")
    parser.add_argument("-o", "--output", required=True, metavar="TOKENS.bin")
    parser.add_argument("--end", metavar="TOKEN", help="such a token behind every text, as <|endoftext|>")
    parser.add_argument("--whole", action="store_true", help="every text as one piece")
    options = parser.parse_args()
    if not options.output.endswith(".bin"):
        fail("-o: got '%s', expected a name that ends in .bin" % options.output)
    tokenizer = read_tokenizer(options.tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        write(options, tokenizer)
    finally:
        if os.path.exists(options.output + ".part"):
            os.remove(options.output + ".part")


if __name__ == "__main__":
    main()
