"""Small ONNX models as seeds: an encoder of the few messages that they need, and the models."""
import struct

FLOAT, INT64 = 1, 7


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name, dims, values, kind=FLOAT):
    packed = struct.pack("<%d%s" % (len(values), "f" if kind == FLOAT else "q"), *values)
    return b"".join(field(1, d) for d in dims) + field(2, kind) + field(8, name) + field(9, packed)


def floats(name, *dims):
    n = 1
    for d in dims:
        n *= d
    return tensor(name, dims, [0.1 * (i % 7) - 0.2 for i in range(n)])


def ints(name, *values):
    return tensor(name, [len(values)], values, INT64)


def attribute(name, value):
    if isinstance(value, float):
        return field(1, name) + field(2, value) + field(20, 1)
    if isinstance(value, int):
        return field(1, name) + field(3, value) + field(20, 2)
    if isinstance(value, str):
        return field(1, name) + field(4, value) + field(20, 3)
    if isinstance(value, bytes):
        return field(1, name) + field(5, value) + field(20, 4)
    return field(1, name) + b"".join(field(8, v) for v in value) + field(20, 7)


def node(op, inputs, outputs, **attributes):
    return (b"".join(field(1, x) for x in inputs.split()) + b"".join(field(2, x) for x in outputs.split())
            + field(3, op + outputs[0]) + field(4, op) + b"".join(field(5, attribute(k, v)) for k, v in attributes.items()))


def value(name, kind, *dims):
    shape = b"".join(field(1, field(2, d) if isinstance(d, str) else field(1, d)) for d in dims)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, shape)))


def model(inputs, outputs, nodes, initializers=(), opset=18):
    graph = (b"".join(field(1, n) for n in nodes) + field(2, "g") + b"".join(field(5, t) for t in initializers)
             + b"".join(field(11, v) for v in inputs) + b"".join(field(12, v) for v in outputs))
    return field(1, 8) + field(2, "seeds") + field(7, graph) + field(8, field(2, opset))


def attention(scale, extra):
    heads = [node("MatMul", "x w" + n, n) for n in "qkv"]
    for n, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        heads += [node("Reshape", n + " shape", n + "r"), node("Transpose", n + "r", n + "h", perm=perm)]
    return model(
        [value("x", FLOAT, "N", 4, 6)], [value("y", FLOAT, "N", 4, 6)],
        heads + [node("MatMul", "qh kh", "s"), node("Mul", "s scale", "t"), *extra, node("Softmax", "u", "p", axis=-1),
                 node("MatMul", "p vh", "o"), node("Transpose", "o", "or", perm=[0, 2, 1, 3]), node("Reshape", "or back", "y")],
        [floats("wq", 6, 6), floats("wk", 6, 6), floats("wv", 6, 6), ints("shape", 0, 0, 2, 3), ints("back", 0, 0, 6),
         tensor("scale", [], [scale]), tensor("mask", [4, 4], [0.0 if j <= i else -1e9 for i in range(4) for j in range(4)])])


SEEDS = {
    "onnx/linear": model([value("x", FLOAT, "N", 3)], [value("y", FLOAT, "N", 4)],
                         [node("Gemm", "x w b", "h", transB=1), node("Relu", "h", "y")], [floats("w", 4, 3), floats("b", 4)]),
    "onnx/matmul": model([value("x", FLOAT, 2, 5, 3)], [value("y", FLOAT, 2, 5, 4)],
                         [node("MatMul", "x w", "h"), node("Add", "h b", "a"), node("Mul", "a a", "c"), node("ReduceMean", "c axes", "y")],
                         [floats("w", 3, 4), floats("b", 4), ints("axes", -1)]),
    "onnx/picture": model([value("x", FLOAT, "N", 2, 8, 8)], [value("y", FLOAT, "N", 3)],
                          [node("Conv", "x w b", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
                           node("BatchNormalization", "c g b m v", "n", epsilon=1e-5),
                           node("MaxPool", "n", "p", kernel_shape=[2, 2], strides=[2, 2]),
                           node("Resize", "p none scales", "r", mode="nearest"), node("GlobalAveragePool", "r", "a"),
                           node("Flatten", "a", "y")],
                          [floats("w", 3, 2, 3, 3), *(floats(n, 3) for n in "bgmv"), tensor("none", [0], []),
                           tensor("scales", [4], [1.0, 1.0, 2.0, 2.0])]),
    "onnx/causal": attention(0.5, [node("Add", "t mask", "u")]),
    "onnx/all": attention(0.577350269, [node("Identity", "t", "u")]),
    "onnx/tokens": model([value("x", INT64, "N", "T")], [value("y", FLOAT, "N", 4, 5)],
                         [node("Gather", "w x", "e"), node("Shape", "x", "s"), node("Gather", "s one", "t"),
                          node("Range", "zero t step", "r"), node("Gather", "p r", "q"), node("Add", "e q", "a"),
                          node("LayerNormalization", "a g b", "n", epsilon=1e-5), node("Sigmoid", "n", "z"), node("Mul", "n z", "y")],
                         [floats("w", 9, 5), floats("p", 6, 5), floats("g", 5), floats("b", 5), tensor("one", [], [1], INT64),
                          tensor("zero", [], [0], INT64), tensor("step", [], [1], INT64)]),
    "onnx/moves": model([value("x", FLOAT, 2, 3, 4)], [value("y", FLOAT, 2, 2, 3), value("z", FLOAT, 2, 3, 2)],
                        [node("Split", "x sizes", "a b", axis=2), node("Transpose", "a", "y", perm=[0, 2, 1]),
                         node("Slice", "x begin end axes", "c"), node("Concat", "c b", "d", axis=2), node("Slice", "d begin end axes", "z")],
                        [ints("sizes", 2, 2), ints("begin", 1), ints("end", 3), ints("axes", 2)]),
    "onnx/opaque": model([value("x", FLOAT, 2, 3)], [value("y", FLOAT, 2, 3)],
                         [node("Elu", "x", "e", alpha=0.5), node("Softplus", "e", "f"),
                          node("ConstantOfShape", "s", "c", value=tensor("", [1], [2.0])), node("Expand", "c s", "d"), node("Where", "t f d", "y")],
                         [ints("s", 2, 3), tensor("t", [2, 3], [0, 1, 0, 1, 1, 1], INT64)]),
    # What is refused, or is not what it looks like.
    "onnx/split": model([value("x", FLOAT, 2, 3)], [value("y", FLOAT, 2, 4)],
                        [node("Split", "w sizes", "a b", axis=0), node("MatMul", "x b", "y")], [floats("w", 4, 4), ints("sizes", 3, 3)]),
    "onnx/broadcast": model([value("x", FLOAT, 2, 500)], [value("y", FLOAT, 2, 500)],
                            [node("Add", "a b", "c", broadcast=1), node("Mul", "x c", "y")], [floats("a", 500), floats("b", 2)], opset=6),
    "onnx/remainders": model([value("x", FLOAT, 2, 5)], [value("y", FLOAT, 2, 5), value("z", FLOAT, 2, 5), value("t", FLOAT, 2, 5)],
                             [node("Mod", "a b", "c", fmod=1), node("Add", "x c", "y"), node("Mod", "i j", "k"), node("Cast", "k", "l", to=FLOAT),
                              node("Add", "x l", "z"), node("Div", "i j", "m"), node("Cast", "m", "n", to=FLOAT), node("Add", "x n", "t")],
                             [tensor("a", [5], [5.5, -5.5, 1.0, 3.0, 0.0]), tensor("b", [5], [2.0, 2.0, 0.0, 4.0, -1.0]),
                              ints("i", 7, -7, 5, -1 << 63, 6), ints("j", -3, 3, 0, -1, (1 << 63) - 1)]),
    "onnx/repeats": model([value("x", FLOAT, "N", 3, 4)], [value("y", FLOAT, "N", 3, 4)],
                          [node("Gather", "w rows", "g"), node("Add", "x g", "y")], [floats("w", 2, 4), ints("rows", 0, 0, 1)]),
    "onnx/fraction": model([value("x", FLOAT, "N", 2, 1, 1)], [value("y", FLOAT, "N", 2, 2, 2)],
                           [node("Resize", "x none scales", "y", mode="nearest")],
                           [tensor("none", [0], []), tensor("scales", [4], [1.0, 1.0, 2.5, 2.5])]),
    "onnx/aspect": model([value("x", FLOAT, 2, 2, 2, 1)], [value("y", FLOAT, 2, 2, 4, 2)],
                         [node("Resize", "x none none sizes", "y", mode="nearest", keep_aspect_ratio_policy="not_larger")],
                         [tensor("none", [0], []), ints("sizes", 2, 2, 4, 2)]),
    "onnx/concat": model([value("x", FLOAT, "N", 3)], [value("y", FLOAT, "N", 6)], [node("Concat", "x x", "y")], opset=3),
    "onnx/training": model([value("x", FLOAT, "N", 3, 4, 4)], [value("y", FLOAT, "N", 3, 4, 4)],
                           [node("BatchNormalization", "x g b m v", "y mean var saved other")], [floats(n, 3) for n in "gbmv"], opset=9),
    "onnx/sizes": model([value("x", FLOAT, 2, 3)], [value("y", FLOAT, 0, 1 << 62, 8), value("z", FLOAT, 0, 1 << 62)],
                        [node("Strange", "x", "y"), node("Flatten", "y", "z")]),
}
