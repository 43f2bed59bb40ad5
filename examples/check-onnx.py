#!/usr/bin/env python3
"""Does smp-import understand an ONNX file? Its outputs here beside ONNX Runtime's.

    check-onnx.py MODEL.onnx [--samples N] [--bin DIR] [--dim NAME=NUMBER]...

(also smp-import --check) imports the file as a model for inference, draws inputs, and predicts each output that depends on
them, here and with ONNX Runtime. Needs Python 3 with numpy, onnx and onnxruntime, and SMP's programs
on the path or in DIR. Exit codes: 0 all outputs agree to 1e-4; 1 one does not, which is named; 2 bad
input.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

try:
    import numpy
    import onnx
    import onnxruntime
except ImportError as missing:
    print(f"check-onnx.py: {missing}: it needs numpy, onnx and onnxruntime (pip install)", file=sys.stderr)
    sys.exit(2)

CLOSE = 1e-4


def run(folder, program, *arguments):
    result = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.stderr.write(result.stderr)
        sys.exit(2)
    return result.stdout


def clean(name):
    """As smp-import has the name of an input."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name.removeprefix("/").replace("/", "."))
    return name if re.match(r"[A-Za-z_]", name) else "x" + name


def draw(text, name, dtype, shape, random):
    """Rows of the table that it asks for; of a mask of padding ones, then zeroes."""
    if dtype != "int32":
        return random.standard_normal(shape).astype("float32")
    rows = re.search(rf"op: embedding, name: [^,]+, in: {re.escape(name)}, .*?rows: (\d+)", text)
    if rows:
        return random.integers(0, int(rows[1]), shape)
    lengths = random.integers(1, shape[-1] + 1, (*shape[:-1], 1)) if len(shape) > 1 else numpy.ones(1)
    return (numpy.arange(shape[-1]) < lengths).astype("int64")


def session_of(path, wanted):
    model = onnx.load(path)
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in known)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as beside:  # weights may be over 2 GB
        changed = os.path.join(beside, "changed.onnx")
        onnx.save(model, changed, save_as_external_data=True, location="weights")
        return onnxruntime.InferenceSession(changed, providers=["CPUExecutionProvider"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--samples", type=int, help="of a file that has no number of its own (default: 2)")
    parser.add_argument("--bin", default="", help="folder of SMP's programs")
    parser.add_argument("--dim", action="append", default=[], help="as smp-import's")
    options = parser.parse_args()
    path = os.path.abspath(options.model)
    program = {name: os.path.join(os.path.abspath(options.bin) if options.bin else "", name)
               for name in ("smp-import", "smp-partition", "smp-run")}
    with tempfile.TemporaryDirectory() as folder:
        dims = [word for dim in options.dim for word in ("--dim", dim)]
        said = run(folder, program["smp-import"], path, "-o", "model.yaml", "--weights", "model.safetensors", *dims)
        if " 0 of them planned" not in said:
            print(f"{options.model}: operators that SMP lacks are planned and not run: their reasons stand in the model file")
            sys.exit(2)
        with open(f"{folder}/model.yaml", encoding="utf-8") as file:
            text = file.read()
        outputs = re.findall(r"^# output (\d+): (\S+)$", text, re.M)
        computed = dict(re.findall(r"^# input (\S+): what the file computes from others as '(.+)'$", text, re.M))
        session = session_of(path, computed.values())
        random = numpy.random.default_rng(1)
        fixed = [x.shape[0] for x in session.get_inputs() if x.shape and isinstance(x.shape[0], int)]
        samples = fixed[0] if fixed else options.samples or 2
        inputs = {}
        for name, dtype, shape, rest in re.findall(r"^  ([^ :]+): \{dtype: (\w+), shape: \[(.*?)\](.*)\}$", text, re.M):
            size = [int(n) for n in shape.split(",") if n.strip()]
            inputs[name] = draw(text, name, dtype, size if "split: false" in rest else [samples, *size], random)
        given = {x.name: inputs[clean(x.name)] for x in session.get_inputs() if clean(x.name) in inputs}
        for x in session.get_inputs():
            if x.name not in given:  # what nothing depends on
                given[x.name] = numpy.ones([n if isinstance(n, int) else samples for n in x.shape], "int64")
        names = [x.name for x in session.get_outputs()]
        there = dict(zip(names, session.run(names, given)))
        inputs |= {name: there[value] for name, value in computed.items()}
        data = []
        for name, value in inputs.items():
            numpy.save(f"{folder}/{name}.npy", value.astype("float32" if value.dtype.kind == "f" else "int32"))
            data += ["--data", f"{name}={name}.npy"]
        run(folder, program["smp-partition"], "model.yaml", "-n", "1", "--microbatches", "1", "--microbatch-size", str(samples),
            "-o", "plan.yaml")
        worst = 0.0
        for index, tensor in outputs:
            expected = there[names[int(index)]]
            run(folder, program["smp-run"], "plan.yaml", *data, "--weights", "model.safetensors", "--steps", "0", "--predict", "here.npy",
                "--tensor", tensor)
            apart = numpy.abs(numpy.load(f"{folder}/here.npy").reshape(expected.shape) - expected)
            worst = max(worst, float((apart / numpy.maximum(1, numpy.abs(expected))).max()))
            if not worst <= CLOSE:
                print(f"{options.model}: output '{names[int(index)]}' is off by {worst:.2g}")
                sys.exit(1)
    print(f"{options.model}: {len(outputs)} outputs agree with ONNX Runtime's, to {worst:.2g}")


if __name__ == "__main__":
    main()
