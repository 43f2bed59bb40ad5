"""examples/tokenize-text.py with tokenizers that are made here: what it writes are the tokens that the package `tokenizers`
makes of the whole text, in files that smp-run trains on, and what cannot be is refused."""

import array
import os
import random
import re
import subprocess
import sys
import tempfile

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROGRAMS = os.path.dirname(os.environ["SMP_PARTITION"])
PEERS = os.environ.get("SMP_TORCH_PEERS", "")
sys.path.append(PEERS)
os.environ["PYTHONPATH"] = os.pathsep.join((os.environ.get("PYTHONPATH", ""), PEERS))

try:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print("skipped: no tokenizers in this Python")
    sys.exit(77)


def run(folder, *command, code=0):
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    require(result.returncode == code, f"{command}: {result.returncode}\n{result.stdout}\n{result.stderr[-3000:]}")
    return result.stdout + result.stderr


def tokenize(folder, *arguments, code=0):
    return run(folder, sys.executable, f"{TREE}/examples/tokenize-text.py", *arguments, code=code)


def require(holds, what):
    if not holds:
        sys.exit(f"does not hold: {what}")


def read(path, magic, version, width):
    with open(path, "rb") as file:
        data = file.read()
    words, tokens = list(array.array("I", data[:1024])), list(array.array({2: "H", 4: "I"}[width], data[1024:]))
    require(words == [magic, version, len(tokens), *[0] * 253], f"{path}: header {words[:4]}, {len(tokens)} tokens")
    return tokens


CHARACTERS = 4500000 if os.environ.get("SMP_TEST_LONG") else 2200000  # pieces have a million
ENDS = ("\n", "\n", "\r\n", "\n\n\n\n", "\n \n\n")


def write_text(path, characters, seed):
    """Words of two alphabets, blank lines, several of them, indentation, and lines that end in carriage returns."""
    draw = random.Random(seed)
    with open(path, "w", encoding="utf-8", newline="") as file:
        while characters > 0:
            words = ["".join(draw.choices("etaoinshrdlué漢", k=draw.randint(1, 8))) for _ in range(draw.randint(0, 12))]
            line = draw.choice(("", "", "", "  ", "\t")) + " ".join(words) + draw.choice((".", "!", "")) + draw.choice(ENDS)
            file.write(line)
            characters -= len(line)
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def byte_level(folder, text, size):
    """As GPT-2's, with a special token at the beginning of whatever is encoded, which is not to be in the file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator([text[:100000]], trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    tokenizer.enable_truncation(10)
    tokenizer.save(f"{folder}/bytes.json")
    tokenizer.no_truncation()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def check_pieces(folder):
    texts = [write_text(f"{folder}/{name}", n, n) for name, n in (("long.txt", CHARACTERS), ("short.txt", 5000))]
    tokenizer = byte_level(folder, texts[0], 400)
    out = tokenize(folder, "bytes.json", "long.txt", "short.txt", "-o", "tokens.bin", "--end", "<|endoftext|>")
    size = tokenizer.get_vocab_size()
    require(re.search(rf"^vocabulary: {size}$", out, re.M), out)
    wanted = [i for text in texts for i in (*tokenizer.encode(text, add_special_tokens=False).ids, 0)]
    got = read(f"{folder}/tokens.bin", 20240520, 1, 2)
    require(got == wanted, f"{len(got)} tokens in pieces are {len(wanted)} of whole texts")
    require(f"{len(got)} tokens (uint16)" in out and f"the largest is {max(got)}\n" in out, out)
    require(tokenizer.decode(got) == "".join(texts), "the texts come back")
    print(out.strip())
    return size


def check_trains(folder, size):
    with open(f"{TREE}/examples/gpt-tiny.yaml", encoding="utf-8") as file:
        text = file.read()
    for vocabulary, code in ((size, 0), (size - 100, 2)):
        with open(f"{folder}/model.yaml", "w", encoding="utf-8") as file:
            file.write(re.sub(r"vocab: \d+", f"vocab: {vocabulary}", text))
        run(folder, f"{PROGRAMS}/smp-partition", "model.yaml", "-n", "1", "--microbatch-size", "2", "--microbatches", "1", "-o", "plan")
        out = run(folder, f"{PROGRAMS}/smp-run", "plan", "--data", "tokens.bin", "--steps", "1", "--json", code=code)
        require(re.search(r'"loss": ?[5-7]\.' if code == 0 else r"tokens\.bin: token \d+ .* is \d+", out), out)


def check_wide(folder):
    """More words than uint16 has, with a gap between their ids."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(70000) if i != 5}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(f"{folder}/words.json")
    with open(f"{folder}/words.txt", "w", encoding="utf-8") as file:
        file.write("w1 w69999\nw65536 unknown\n")
    out = tokenize(folder, "words.json", "words.txt", "-o", "words.bin")
    require("vocabulary: 70000\n" in out, out)
    require(read(f"{folder}/words.bin", 20240801, 7, 4) == [1, 69999, 65536, 0], out)


def check_refused(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Prepend("_")
    tokenizer.train_from_iterator(["_ae"], trainers.BpeTrainer(vocab_size=300, initial_alphabet=list("_taoinshrdlu"), show_progress=False))
    tokenizer.save(f"{folder}/prepends.json")
    with open(f"{folder}/long.txt", encoding="utf-8", newline="") as file:
        text = file.read()
    with open(f"{folder}/longer.txt", "w", encoding="utf-8", newline="") as file:
        file.write(text + text)  # more than a piece may have
    out = tokenize(folder, "prepends.json", "longer.txt", "-o", "none.bin", code=1)
    require("longer.txt: with this tokenizer every cut changes tokens: expected --whole" in out, out)
    tokenize(folder, "prepends.json", "long.txt", "-o", "whole.bin", "--whole")
    require(read(f"{folder}/whole.bin", 20240520, 1, 2) == tokenizer.encode(text).ids, "a text as one piece")
    for arguments, message in ((("bytes.json", "short.txt", "-o", "none.txt"), "expected a name that ends in .bin"),
                               (("bytes.json", "none", "-o", "none.bin"), "none: .*No such file"),
                               (("bytes.json", "tokens.bin", "-o", "none.bin"), "tokens.bin: .*codec can't decode"),
                               (("short.txt", "short.txt", "-o", "none.bin"), "short.txt: "),
                               (("bytes.json", "short.txt", "-o", "none.bin", "--end", "</s>"), "'</s>' is no token of bytes.json")):
        out = tokenize(folder, *arguments, code=1)
        require(re.search(message, out) and "Traceback" not in out, f"{arguments}: {out}")
    require(not [name for name in os.listdir(folder) if name.startswith("none")], "nothing is left of what failed")


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_trains(folder, check_pieces(folder))
        check_wide(folder)
        check_refused(folder)


main()
