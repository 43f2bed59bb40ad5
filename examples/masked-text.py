#!/usr/bin/env python3
"""Arrays for bert-small.yaml and t5-small.yaml from a text file; needs Python 3 alone.

    masked-text.py bert|t5 TEXT [FOLDER]      default: masked-text

writes FOLDER/{train,held}-INPUT.npy for every input of the model, and prints what a unigram and a
bigram model of the training part reach on the bytes that the held-out part (the text's last 2 %)
asks for. Samples are pieces of the text that end with a line where one ends in their second half,
so they differ in length; mask is 1 where there is something and 0 in the padding.

Vocabulary: 0 to 255 are bytes; above them stand

    bert  256 padding, 257 [CLS], 258 [SEP], 259 [MASK]                            260 in all
    t5    256 padding and the decoder's first token, 257 end, 258 to 265 sentinels 266 in all

bert (Devlin et al. 2018): [CLS] a [SEP] b [SEP], cut into segments 0 and 1 at a random place. Of the
bytes 15 % have a target: 80 % of these read [MASK], 10 % a random byte, 10 % what they are.

t5 (Raffel et al. 2019): 15 % of the bytes, in spans of 3 on average, are each span replaced by a
sentinel; the decoder writes sentinel, span, sentinel, span .. end. In the held-out part sentinels
and end have no target, so that a loss there is one of bytes.
"""
import argparse
import array
import math
import os
import random
import sys

BYTES, SHARE, SPAN = 256, 0.15, 3
PAD, CLS, SEP, MASK = 256, 257, 258, 259
START, END, SENTINEL, SENTINELS = 256, 257, 258, 8
BERT_LENGTH, ENCODER, DECODER = 64, 64, 16  # T of the models
HELD = 0.02


def pieces(text, begin, end, most):
    """(begin, end) of pieces of at most `most` bytes; what is shorter than half of it is left out."""
    while end - begin >= most // 2:
        newline = text.rfind(b"\n", begin + most // 2, min(begin + most, end)) + 1
        stop = newline or min(begin + most, end)
        yield begin, stop
        begin = stop


def below(rng, n):
    return int(rng.random() * n)


def draw(rng, n, count):
    """`count` different numbers below n, in order."""
    taken = set()
    while len(taken) < count:
        taken.add(below(rng, n))
    return sorted(taken)


def padded(values, length, padding):
    return values + [padding] * (length - len(values))


def bert_sample(rng, text, begin, end, held):
    del held
    n, cut = end - begin, 1 + below(rng, end - begin - 1)
    read, targets = list(text[begin:end]), [-1] * n
    asked = draw(rng, n, max(1, round(SHARE * n)))
    for i in asked:
        targets[i] = read[i]
        chance = rng.random()
        if chance < 0.9:
            read[i] = MASK if chance < 0.8 else below(rng, BYTES)
    used = n + 3
    tokens = [CLS] + read[:cut] + [SEP] + read[cut:] + [SEP]
    sample = {
        "tokens": padded(tokens, BERT_LENGTH, PAD),
        "segments": padded([0] * (cut + 2) + [1] * (n - cut + 1), BERT_LENGTH, 0),
        "mask": padded([1] * used, BERT_LENGTH, 0),
        "targets": padded([-1] + targets[:cut] + [-1] + targets[cut:] + [-1], BERT_LENGTH, -1),
    }
    return sample, [begin + i for i in asked]


def split(rng, n, parts):
    """n as a sum of numbers of at least 1."""
    bounds = [0] + [1 + i for i in draw(rng, n - 1, parts - 1)] + [n]
    return [b - a for a, b in zip(bounds, bounds[1:])]


def t5_sample(rng, text, begin, end, held):
    n = end - begin
    noise = max(1, round(SHARE * n))
    spans = max(1, round(noise / SPAN))
    kept, gone = split(rng, n - noise, spans), split(rng, noise, spans)
    read, write, targets, asked, at = [], [], [], [], begin
    for k in range(spans):
        read += list(text[at:at + kept[k]]) + [SENTINEL + k]
        at += kept[k]
        span = list(text[at:at + gone[k]])
        write += [SENTINEL + k] + span
        targets += [-1 if held else SENTINEL + k] + span
        asked += range(at, at + gone[k])
        at += gone[k]
    sample = {
        "tokens": padded(read + [END], ENCODER, PAD),
        "mask": padded([1] * (len(read) + 1), ENCODER, 0),
        "decoder_tokens": padded([START] + write, DECODER, PAD),
        "targets": padded(targets + [-1 if held else END], DECODER, -1),
    }
    return sample, asked


# How many bytes fit: of 70 T5 reads 60, 3 sentinels and an end, and writes 10, 3 sentinels, an end;
# and the copies of the training part, each with pieces and masks of its own.
TASKS = {"bert": (bert_sample, BERT_LENGTH - 3, 2), "t5": (t5_sample, 70, 4)}
TYPES = {"mask": ("|u1", "B"), "segments": ("|u1", "B"), "tokens": ("<u2", "H"),
         "decoder_tokens": ("<u2", "H"), "targets": ("<i4", "i")}


def write_array(path, name, columns, values):
    """An .npy file of version 1.0: 10 bytes, a header up to a multiple of 64, the values."""
    shape = (len(values) // columns, columns)
    header = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (TYPES[name][0], shape)
    header = header.ljust(117) + "\n"
    if sys.byteorder == "big":
        values.byteswap()
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        values.tofile(file)
    print("%s %s" % (path, shape))


def write_part(folder, part, samples):
    columns, arrays = {}, {}
    for sample in samples:
        for name, values in sample.items():
            columns[name] = len(values)
            arrays.setdefault(name, array.array(TYPES[name][1])).extend(values)
    for name, values in arrays.items():
        write_array(os.path.join(folder, "%s-%s.npy" % (part, name)), name, columns[name], values)


def baselines(text, bound, asked):
    """Nats per byte asked for, of counts in text[:bound] with 1 added to each."""
    one, two = [1] * BYTES, [[1] * BYTES for _ in range(BYTES)]
    for left, right in zip(text[:bound - 1], text[1:bound]):
        one[right] += 1
        two[left][right] += 1
    total, sums = sum(one), [sum(row) for row in two]
    unigram = -sum(math.log(one[text[i]] / total) for i in asked) / len(asked)
    bigram = -sum(math.log(two[text[i - 1]][text[i]] / sums[text[i - 1]])
                  for i in asked) / len(asked)
    return unigram, bigram


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("text")
    parser.add_argument("folder", nargs="?", default="masked-text")
    options = parser.parse_args()
    with open(options.text, "rb") as file:
        text = file.read()
    bound = int(len(text) * (1 - HELD))
    if len(text) - bound < 100:
        sys.exit("masked-text: %s: got %d bytes, expected at least 5000" % (options.text, len(text)))
    os.makedirs(options.folder, exist_ok=True)
    make, most, copies = TASKS[options.task]
    rng = random.Random(1)
    train = (make(rng, text, *piece, False)[0] for copy in range(copies)
             for piece in pieces(text, copy * most // copies, bound, most))
    write_part(options.folder, "train", train)
    held = [make(rng, text, *piece, True) for piece in pieces(text, bound, len(text), most)]
    write_part(options.folder, "held", (sample for sample, _ in held))
    asked = [i for _, places in held for i in places]
    print("held out: %d bytes asked for; unigram %.4f, bigram %.4f nats each"
          % ((len(asked),) + baselines(text, bound, asked)))


if __name__ == "__main__":
    main()
