/* Every way to get a model file wrong that we thought of: one message, with the place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/text.h"
#include "tests/graph/model/model_text.h"

/* A body that needs `ops:`; inputs f (float) and i (int) stand on line 2. */
#define WITH_OPS(ops)                                                                              \
    "smp: 1\n"                                                                                     \
    "inputs: {f: {dtype: float32, shape: [4, 8]}, i: {dtype: int32, shape: [4]}}\n"                \
    "ops:\n" ops

#define RELU "  - {op: relu, name: r, in: f, out: r}\n"
#define MSE "  - {op: mse, name: m, in: [f, f], out: m}\n"

typedef struct error_case {
    const char *text;
    const char *start; /* place */
    const char *part;
} error_case;

static void run(const error_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        expect_error(cases[i].text, strlen(cases[i].text), cases[i].start, cases[i].part);
}
#define RUN(cases) run(cases, sizeof(cases) / sizeof(cases)[0])

static void test_model_errors_top(void **state)
{
    static const error_case cases[] = {
        {"smp: 1\nop: []\n", "m.yaml:2:1:", "model: unknown key 'op', did you mean 'ops'?"},
        {"smp: 1\nname: x\n", "m.yaml:1:1:", "no 'ops'"},
        {"smp: 1\nops: {}\n", "m.yaml:2:6:", "ops: got a map, expected a list"},
        {"smp: 1\nops: []\n", "m.yaml:2:6:", "got no op"},
        {"smp: 1\nops: [{repeat: 0, ops: []}]\n", "m.yaml:2:6:", "got no op"},
        {"smp: 1\nmode: train\nops: []\n",
         "m.yaml:2:7:", "got 'train', expected training or inference"},
        {"smp: 1\nname: [x]\nops: []\n", "m.yaml:2:7:", "name: got a list"},
        {"smp: 1\nname: \"a\\nb\"\nops: []\n", "m.yaml:2:7:", "control character"},
        {"smp: 1\nops: [x]\n", "m.yaml:2:7:", "ops: entry: got 'x', expected a map"},
        {"smp: 1\nops: [{name: x}]\n", "m.yaml:2:7:", "without 'op' or 'ops'"},
    };
    (void)state;
    RUN(cases);
}

static void test_model_errors_let(void **state)
{
    static const error_case cases[] = {
        {"smp: 1\nlet: [a]\nops: []\n", "m.yaml:2:6:", "let: got a list"},
        {"smp: 1\nlet: {a: b, b: 1}\nops: []\n", "m.yaml:2:10:", "unknown name 'b'"},
        {"smp: 1\nlet: {a: a}\nops: []\n", "m.yaml:2:10:", "unknown name 'a'"},
        {"smp: 1\nlet: {layers: 1, b: layer}\nops: []\n", "m.yaml:2:21:", "did you mean 'layers'?"},
        {"smp: 1\nlet: {a: 1/0}\nops: []\n", "m.yaml:2:11:", "division by zero"},
        {"smp: 1\nlet: {a: \"1/0\"}\nops: []\n", "m.yaml:2:12:", "division by zero"},
        {"smp: 1\nlet: {a: 4, a: 5}\nops: []\n", "m.yaml:2:13:", "duplicate key 'a'"},
        {"smp: 1\nlet: {a-b: 4}\nops: []\n", "m.yaml:2:7:", "got 'a-b' as a name"},
        {"smp: 1\nlet: {2a: 4}\nops: []\n", "m.yaml:2:7:", "got '2a' as a name"},
        {"smp: 1\nlet: {a: }\nops: []\n", "m.yaml:2:", "let: a: got nothing"},
        {"smp: 1\nlet: {a: \"\"}\nops: []\n", "m.yaml:2:10:", "let: a: got an empty text"},
        {"smp: 1\nlet: {a: []}\nops: []\n", "m.yaml:2:10:", "let: a: got an empty list"},
        {"smp: 1\nlet: {a: [1, [2]]}\nops: []\n", "m.yaml:2:14:", "let: a: got a list"},
        {"smp: 1\nlet: {a: [1, a]}\nops: []\n", "m.yaml:2:14:", "unknown name 'a'"},
        {"smp: 1\nlet: {a: [1, 2], b: a}\nops: []\n",
         "m.yaml:2:21:", "'a' is a list, expected an item of it, 'a[0]'"},
        {"smp: 1\nlet: {a: [1, 2], b: \"a[2]\"}\nops: []\n",
         "m.yaml:2:24:", "got index 2 of 'a', expected 0 to 1"},
        {"smp: 1\nlet: {a: 1, b: \"a[0]\"}\nops: []\n", "m.yaml:2:18:", "'a' is not a list"},
        {"smp: 1\nlet: {a: 9000000000 * 9000000000}\nops: []\n", "m.yaml:2:21:", "64 bits"},
    };
    (void)state;
    RUN(cases);
}

#define INPUT(input) "smp: 1\ninputs: {x: " input "}\nops: [{op: opaque, name: o, out: o}]\n"

static void test_model_errors_inputs(void **state)
{
    static const error_case cases[] = {
        {"smp: 1\ninputs: []\nops: [{op: opaque, name: o, out: o}]\n",
         "m.yaml:2:9:", "inputs: got a list"},
        {INPUT("5"), "m.yaml:2:13:", "input 'x': got '5', expected a map"},
        {INPUT("{shape: [1]}"), "m.yaml:2:13:", "input 'x': no 'dtype'"},
        {INPUT("{dtype: int32}"), "m.yaml:2:13:", "input 'x': no 'shape'"},
        {INPUT("{dtype: fp31, shape: [1]}"),
         "m.yaml:2:21:", "input 'x': dtype: got 'fp31', expected one of float32, int32, bf16"},
        {INPUT("{dtype: int32, shape: 4}"), "m.yaml:2:35:", "input 'x': shape: got '4'"},
        {INPUT("{dtype: int32, shape: [4, 0]}"),
         "m.yaml:2:39:", "input 'x': shape: got 0, expected at least 1"},
        {INPUT("{dtype: int32, shape: [-4]}"), "m.yaml:2:36:", "got -4, expected at least 1"},
        {INPUT("{dtype: int32, shape: [1048576, 1048577]}"),
         "m.yaml:2:35:", "got [1048576, 1048577], expected at most 2^40 elements"},
        {INPUT("{dtype: int32, shape: [9223372036854775807, 9223372036854775807]}"),
         "m.yaml:2:35:", "expected at most 2^40 elements"},
        {INPUT("{dtype: int32, shape: [1,1,1,1,1,1,1]}"),
         "m.yaml:2:35:", "got 7 dimensions, expected at most 6"},
        {INPUT("{dtype: int32, shape: [1], size: 3}"), "m.yaml:2:40:", "unknown key 'size'"},
        {"smp: 1\ninputs: {'a b': {dtype: int32, shape: [1]}}\nops: [{op: opaque, name: o, out: "
         "o}]",
         "m.yaml:2:10:", "got a blank"},
    };
    (void)state;
    RUN(cases);
}

static void test_model_errors_op_keys(void **state)
{
    static const error_case cases[] = {
        {WITH_OPS("  - {op: liner, name: r, in: f, out: r}\n"),
         "m.yaml:4:10:", "unknown op 'liner', did you mean 'linear'?"},
        {WITH_OPS("  - {op: convolution_3d, name: r}\n"),
         "m.yaml:4:10:", "expected one of embedding"},
        {WITH_OPS("  - {op: relu, in: f, out: r}\n"), "m.yaml:4:5:", "no 'name'"},
        {WITH_OPS("  - {op: relu, nam: r, in: f, out: r}\n"),
         "m.yaml:4:16:", "unknown key 'nam', did you mean 'name'?"},
        {WITH_OPS("  - {opp: relu, name: r, in: f, out: r}\n"),
         "m.yaml:4:6:", "unknown key 'opp', did you mean 'op'?"},
        {WITH_OPS("  - {op: relu, name: r, in: f}\n"), "m.yaml:4:5:", "op 'r' (relu): no 'out'"},
        {WITH_OPS("  - {op: relu, name: r, in: f, out: r, features: 3}\n"),
         "m.yaml:4:40:", "op 'r' (relu): unknown key 'features'"},
        {WITH_OPS("  - {op: linear, name: r, in: f, out: r, feature: 3}\n"),
         "m.yaml:4:42:", "did you mean 'features'?"},
        {WITH_OPS("  - {op: linear, name: r, in: f, out: r}\n"),
         "m.yaml:4:5:", "op 'r' (linear): no 'features'"},
        {WITH_OPS("  - {op: relu, name: r, out: r}\n"), "m.yaml:4:5:", "got 0 inputs, expected 1"},
        {WITH_OPS("  - {op: relu, name: r, in: [f, f], out: r}\n"),
         "m.yaml:4:29:", "op 'r' (relu): got 2 inputs, expected 1"},
        {WITH_OPS("  - {op: relu, name: r, in: {a: f}, out: r}\n"),
         "m.yaml:4:29:", "op 'r': in: got a map"},
        {WITH_OPS("  - {op: relu, name: r, in: [[f]], out: r}\n"),
         "m.yaml:4:30:", "op 'r': in: got a list"},
        {WITH_OPS("  - {op: relu, name: r, in: f, out: [[r]]}\n"),
         "m.yaml:4:38:", "op 'r': out: got a list"},
        {WITH_OPS("  - {op: relu, name: r, in: f, out: {a: r}}\n"),
         "m.yaml:4:37:", "op 'r': out: got a map"},
        {WITH_OPS("  - {op: relu, name: r, in: f, out: [r, s]}\n"),
         "m.yaml:4:37:", "op 'r' (relu): got 2 outputs, expected 1"},
        {WITH_OPS("  - {op: relu, name: r, in: f, out: []}\n"),
         "m.yaml:4:37:", "op 'r' (relu): got 0 outputs, expected 1"},
        {WITH_OPS("  - {op: split, name: r, in: f, out: [r, r]}\n"),
         "m.yaml:4:42:", "op 'r': out: got 'r' twice"},
        {WITH_OPS("  - {op: split, name: r, in: f, out: [r, s]}\n"
                  "  - {op: add, name: a, in: [r, s1], out: r}\n"),
         "m.yaml:5:32:", "op 'a': unknown tensor 's1', did you mean 's'?"},
        {WITH_OPS("  - {op: add, name: a, in: [q, f], out: z}\n"
                  "  - {op: split, name: r, in: f, out: [p, q]}\n"),
         "m.yaml:4:29:", "tensor 'q' is read before it is made, by op 'r' on line 5"},
        {WITH_OPS("  - {op: [relu], name: r, in: f, out: r}\n"), "m.yaml:4:10:", "op: got a list"},
        {WITH_OPS("  - {op: relu, name: r, in: f, out: r, op: relu}\n"),
         "m.yaml:4:40:", "duplicate key 'op'"},
    };
    (void)state;
    RUN(cases);
}

static void test_model_errors_names(void **state)
{
    static const error_case cases[] = {
        {WITH_OPS(RELU RELU), "m.yaml:5:22:", "op 'r': the name is already used on line 4"},
        {WITH_OPS("  - {op: relu, name: 'a b', in: f, out: r}\n"),
         "m.yaml:4:23:", "op name 'a b': got a blank"},
        {WITH_OPS("  - {op: relu, name: 'a,b', in: f, out: r}\n"), "m.yaml:4:23:", "got ','"},
        {WITH_OPS("  - {op: relu, name: 'a\"b', in: f, out: r}\n"), "m.yaml:4:23:", "got '\"'"},
        {WITH_OPS("  - {op: relu, name: \"\xc3\xa9\", in: f, out: r}\n"), "m.yaml:4:", "got 0xc3"},
        {WITH_OPS("  - {op: relu, name: '', in: f, out: r}\n"), "m.yaml:4:23:", "an empty name"},
        {WITH_OPS("  - {op: relu, name: 'a{', in: f, out: r}\n"),
         "m.yaml:4:24:", "got '{' without its partner"},
        {WITH_OPS("  - {op: relu, name: 'a}', in: f, out: r}\n"), "m.yaml:4:24:", "got '}'"},
        {WITH_OPS("  - {op: relu, name: 'a{{1}}', in: f, out: r}\n"), "m.yaml:4:", "got '{'"},
        {WITH_OPS("  - {op: relu, name: 'a{}', in: f, out: r}\n"),
         "m.yaml:4:25:", "got the end, expected a number"},
        {WITH_OPS("  - {op: relu, name: 'a{i}', in: f, out: r}\n"),
         "m.yaml:4:25:", "unknown name 'i'"},
        {WITH_OPS("  - {op: relu, name: r, in: 'f g', out: r}\n"), "m.yaml:4:30:", "got a blank"},
        {WITH_OPS("  - {op: relu, name: r, in: f, out: r, group: 'a b'}\n"),
         "m.yaml:4:48:", "op 'r': group 'a b': got a blank"},
        {WITH_OPS("  - {repeat: 2, ops: [{op: relu, name: r, in: f, out: r}]}\n"),
         "m.yaml:4:40:", "op 'r': a repeat makes this name twice"},
    };
    (void)state;
    RUN(cases);
    smp_text text = {0};
    smp_text_append(&text, WITH_OPS("  - {op: relu, in: f, out: r, name: n"));
    for (int i = 0; i < 255; i++)
        smp_text_append(&text, "x");
    smp_text_append(&text, "}\n");
    expect_error(text.data, text.length,
                 "m.yaml:4:37:", "got 256 characters, expected at most 255");
    smp_text_free(&text);
    smp_text_append(&text, WITH_OPS("  - {op: relu, in: f, out: r, name: 'n{1000000000000000}"));
    for (int i = 0; i < 240; i++)
        smp_text_append(&text, "x");
    smp_text_append(&text, "'}\n");
    expect_error(text.data, text.length, "m.yaml:4:38:", "longer than 255 characters");
    smp_text_free(&text);
}

static void test_model_errors_tensors(void **state)
{
    static const error_case cases[] = {
        {WITH_OPS("  - {op: relu, name: r, in: ff, out: r}\n"),
         "m.yaml:4:29:", "op 'r': unknown tensor 'ff', did you mean 'f'?"},
        {WITH_OPS("  - {op: relu, name: r, in: nothing_like_it, out: r}\n"),
         "m.yaml:4:29:", "expected a model input or the 'out' of an op before it"},
        {WITH_OPS("  - {op: relu, name: r, in: later, out: r}\n"
                  "  - {op: relu, name: s, in: f, out: later}\n"),
         "m.yaml:4:29:", "tensor 'later' is read before it is made, by op 's' on line 5"},
        {WITH_OPS("  - {op: relu, name: r, in: y3, out: r}\n"
                  "  - {repeat: 5, as: k, ops: [{op: relu, name: 's{k}', in: f, out: 'y{k}'}]}\n"),
         "m.yaml:4:29:", "by op 's3' on line 5"},
        {WITH_OPS("  - {op: add, name: a, in: [f, b], out: a}\n"
                  "  - {op: relu, name: b, in: a, out: b}\n"),
         "m.yaml:4:32:", "wrong order or a cycle"},
        {WITH_OPS("  - {op: relu, name: r, in: own, out: own}\n"),
         "m.yaml:4:29:", "reads the tensor 'own' that it makes itself"},
        {WITH_OPS("  - {op: opaque, name: o, in: f, out: o}\n"
                  "  - {op: relu, name: r, in: o, out: r}\n"),
         "m.yaml:5:29:", "the shape of 'o' is not known, as op 'o' (opaque) makes it"},
        {WITH_OPS("  - {op: relu, name: r, in: i, out: r}\n"),
         "m.yaml:4:5:", "op 'r' (relu): input 0 'i' holds int32, expected float32"},
        {WITH_OPS(MSE "  - {op: relu, name: r, in: m, out: r}\n"),
         "m.yaml:5:29:", "'m' is one value per micro-batch"},
        {WITH_OPS("  - {op: add, name: a, in: [f, i], out: a}\n"), "m.yaml:4:5:", "op 'a' (add):"},
    };
    (void)state;
    RUN(cases);
}

#define LINEAR(rest) WITH_OPS("  - {op: linear, name: l, in: f, out: l, " rest "}\n")

static void test_model_errors_attributes(void **state)
{
    static const error_case cases[] = {
        {LINEAR("features: 0"), "m.yaml:4:52:", "op 'l': features: got 0, expected at least 1"},
        {LINEAR("features: -3"), "m.yaml:4:52:", "got -3"},
        {LINEAR("features: 99999999999"), "m.yaml:4:52:", "expected at most 2147483647"},
        {LINEAR("features: x"), "m.yaml:4:52:", "unknown name 'x'"},
        {LINEAR("features: 4/0"), "m.yaml:4:53:", "division by zero"},
        {LINEAR("features: [4]"), "m.yaml:4:52:", "op 'l': features: got a list"},
        {LINEAR("features: "), "m.yaml:4:", "op 'l': features: got nothing"},
        {LINEAR("features: 4, bias: maybe"),
         "m.yaml:4:61:", "op 'l': bias: got 'maybe', expected true or false"},
        {LINEAR("features: 4, init_std: big"), "m.yaml:4:65:", "op 'l': init_std: got 'big'"},
        {LINEAR("features: 4, init_std: .nan"), "m.yaml:4:65:", "op 'l': init_std: got '.nan'"},
        {LINEAR("features: 4, weight: m.weight"),
         "m.yaml:4:63:", "op 'l' (linear): unknown weight 'm.weight'"},
        {LINEAR("features: 4, weight: l.bias"), "m.yaml:4:63:", "unknown weight 'l.bias'"},
        {LINEAR("features: 8}\n  - {op: linear, name: k, in: l, out: k, features: 3, weight: "
                "l.weight"),
         "m.yaml:5:63:", "weight 'l.weight' has shape [8, 8], expected [3, 8]"},
        {LINEAR("features: 8}\n  - {op: linear, name: k, in: l, out: k, features: 8, weight: "
                "l.wieght"),
         "m.yaml:5:63:", "did you mean 'l.weight'?"},
        {LINEAR("features: 8}\n  - {op: batchnorm, name: b, in: l, out: k}\n"
                "  - {op: linear, name: m, in: k, out: m, features: 8, weight: b.running_var"),
         "m.yaml:6:63:", "'b.running_var' is a running statistic, expected a weight"},
        {WITH_OPS("  - {op: gelu, name: g, in: f, out: g, approximate: cubic}\n"),
         "m.yaml:4:53:", "op 'g': approximate: got 'cubic', expected"},
        {WITH_OPS("  - {op: opaque, name: o, out: o, shape: 4}\n"),
         "m.yaml:4:42:", "op 'o': shape: got '4', expected a list"},
        {WITH_OPS("  - {op: opaque, name: o, out: o, shape: [2, 0]}\n"),
         "m.yaml:4:46:", "op 'o': shape: got 0, expected at least 1"},
        {WITH_OPS("  - {op: opaque, name: o, out: o, shape: [1048576, 1048577]}\n"),
         "m.yaml:4:5:", "has shape [1048576, 1048577], expected 1 to 2^40 elements"},
    };
    (void)state;
    RUN(cases);
}

#define OPAQUE(rest) WITH_OPS("  - {op: opaque, name: o, out: o, " rest "}\n")

/* A linear [8, 8] `l`, a batchnorm `b`, and an op of line 6 that reads them. */
#define TIE(rest)                                                                                  \
    LINEAR("features: 8}\n  - {op: batchnorm, name: b, in: l, out: k}\n  - " rest "}\n"            \
           "  - {op: relu, name: r, in: l, out: r")
#define TIED(tie) TIE("{op: linear, name: m, in: k, out: m, features: 8, tie: " tie)

static void test_model_errors_ties(void **state)
{
    static const error_case cases[] = {
        {TIED("l.weight"), "m.yaml:6:60:", "op 'm': tie: got 'l.weight', expected a map"},
        {TIED("{weight: [l.weight]}"), "m.yaml:6:69:", "op 'm': tie: weight: got a list"},
        {TIED("{weight: '{x}.weight'}"), "m.yaml:6:71:", "unknown name 'x'"},
        {TIED("{wieght: l.weight}"),
         "m.yaml:6:61:", "op 'm' (linear): tie: it has no weight 'wieght', did you mean 'weight'?"},
        {TIED("{weight: l.weight, gain: l.bias}"), "m.yaml:6:79:", "it has no weight 'gain'"},
        {TIED("{bias: l.bias}, bias: false"), "m.yaml:6:61:", "it has no weight 'bias'"},
        {TIE("{op: relu, name: m, in: k, out: m, tie: {weight: l.weight}"),
         "m.yaml:6:46:", "op 'm' (relu): tie: it has no weight 'weight'"},
        {TIED("{weight: l.wieght}"),
         "m.yaml:6:69:", "op 'm' (linear): unknown weight 'l.wieght', did you mean 'l.weight'?"},
        {TIED("{bias: m.weight}"), "m.yaml:6:67:", "unknown weight 'm.weight'"},
        {TIED("{weight: l.weight, bias: m.weight}"), "m.yaml:6:85:", "unknown weight 'm.weight'"},
        {TIED("{bias: l}"), "m.yaml:6:67:", "unknown weight 'l'"},
        {TIED("{bias: l.weight}"),
         "m.yaml:6:67:", "weight 'l.weight' has shape [8, 8], expected [8]"},
        {TIED("{weight: l.weight}, weight: l.weight"),
         "m.yaml:6:61:", "tie: weight is tied to 'l.weight' already"},
        {TIE("{op: batchnorm, name: m, in: k, out: m, tie: {running_mean: b.running_mean}"),
         "m.yaml:6:51:", "tie: running_mean is a running statistic, expected a weight"},
        {TIE("{op: batchnorm, name: m, in: k, out: m, tie: {bias: b.running_mean}"),
         "m.yaml:6:57:", "'b.running_mean' is a running statistic, expected a weight"},
    };
    (void)state;
    RUN(cases);
}

static void test_model_errors_stage_and_cost(void **state)
{
    static const error_case cases[] = {
        {OPAQUE("stage: -1"), "m.yaml:4:42:", "op 'o': stage: got -1, expected at least 0"},
        {OPAQUE("stage: 99999999999"), "m.yaml:4:42:", "op 'o': stage: got 99999999999"},
        {OPAQUE("stage: first"), "m.yaml:4:42:", "unknown name 'first'"},
        {OPAQUE("cost: 5"), "m.yaml:4:41:", "op 'o': cost: got '5', expected a map"},
        {OPAQUE("cost: {forward: 5}"), "m.yaml:4:42:", "op 'o': cost: unknown key 'forward'"},
        {OPAQUE("cost: {forward_us: -5}"), "m.yaml:4:54:", "op 'o': cost: forward_us: got '-5'"},
        {OPAQUE("cost: {forward_us: 2e15}"), "m.yaml:4:54:", "1e-250 to 1e15"},
        {OPAQUE("cost: {forward_us: 1e-320}"), "m.yaml:4:54:", "got '1e-320'"},
        {OPAQUE("cost: {forward_us: .inf}"), "m.yaml:4:54:", "got '.inf'"},
        {OPAQUE("cost: {forward_us: 1us}"), "m.yaml:4:54:", "got '1us'"},
        {OPAQUE("cost: {weight_bytes: -1}"), "m.yaml:4:56:", "expected a size such as"},
        {OPAQUE("cost: {weight_bytes: 2EiB}"), "m.yaml:4:56:", "up to 1024PiB"},
        {OPAQUE("cost: {weight_bytes: 99999999999999999999}"), "m.yaml:4:56:", "weight_bytes: got"},
    };
    (void)state;
    RUN(cases);
}

static void test_model_errors_repeat(void **state)
{
    static const error_case cases[] = {
        {WITH_OPS("  - {repeat: -1, ops: []}\n" RELU),
         "m.yaml:4:14:", "repeat: got -1, expected at least 0"},
        {WITH_OPS("  - {repeat: 1, when: n, ops: []}\n"), "m.yaml:4:23:", "unknown name 'n'"},
        {WITH_OPS("  - {repeat: -1, when: 0, ops: []}\n"), "m.yaml:4:3:", "got no op"},
        {WITH_OPS("  - {when: 2}\n"), "m.yaml:4:5:", "without 'op' or 'ops'"},
        {WITH_OPS("  - {wen: 1, ops: []}\n"),
         "m.yaml:4:6:", "unknown key 'wen', did you mean 'when'"},
        {WITH_OPS("  - {op: relu, name: r, in: f, out: r, when: []}\n"),
         "m.yaml:4:46:", "when: got a list"},
        {WITH_OPS("  - {op: relu, name: r, in: f, out: r, when: 0}\n"
                  "  - {op: relu, name: s, in: r, out: s}\n"),
         "m.yaml:5:29:", "unknown tensor 'r'"},
        {WITH_OPS("  - {repeat: n, ops: []}\n"), "m.yaml:4:14:", "unknown name 'n'"},
        {WITH_OPS("  - {repeat: 2}\n"), "m.yaml:4:5:", "repeat: no 'ops'"},
        {WITH_OPS("  - {repeat: 2, ops: 5}\n"), "m.yaml:4:22:", "ops: got '5'"},
        {WITH_OPS("  - {repeat: 2, for: i, ops: []}\n"), "m.yaml:4:17:", "unknown key 'for'"},
        {WITH_OPS("  - {repeat: 2, as: 1, ops: []}\n"), "m.yaml:4:21:", "got '1' as a name"},
        {WITH_OPS("  - {repeat: 2, as: i, ops: [{repeat: 2, as: i, ops: []}]}\n"),
         "m.yaml:4:46:", "the name 'i' is the variable of a repeat around it"},
        {"smp: 1\nlet: {i: 1}\nops: [{repeat: 2, as: i, ops: []}]\n",
         "m.yaml:3:23:", "the name 'i' is already an entry of 'let'"},
        {WITH_OPS("  - {repeat: 2, as: k, ops: []}\n"
                  "  - {op: relu, name: 'r{k}', in: f, out: r}\n"),
         "m.yaml:5:25:", "unknown name 'k'"},
        {WITH_OPS("  - repeat: 3\n    as: k\n    ops:\n"
                  "      - {op: linear, name: 'l{k}', in: f, out: l, features: 4 / (1 - k)}\n"),
         "m.yaml:7:63:", "division by zero"},
    };
    (void)state;
    RUN(cases);
}

static void test_model_errors_loss(void **state)
{
    static const error_case cases[] = {
        {WITH_OPS(RELU "loss: r\n"),
         "m.yaml:5:7:", "loss: 'r', made by op 'r' (relu), is float32 [4, 8] per sample"},
        {WITH_OPS(RELU "loss: f\n"), "m.yaml:5:7:", "loss: 'f' is a model input"},
        {WITH_OPS(MSE "loss: mm\n"), "m.yaml:5:7:", "loss: unknown tensor 'mm', did you mean 'm'"},
        {WITH_OPS(MSE "loss: 'a b'\n"), "m.yaml:5:7:", "got a blank"},
        {WITH_OPS(MSE "loss: [m]\n"), "m.yaml:5:7:", "loss: got a list"},
        {WITH_OPS("  - {op: opaque, name: o, out: o}\nloss: o\n"),
         "m.yaml:5:7:", "float32 an unknown shape"},
        {WITH_OPS(MSE "  - {op: opaque, name: o, in: m, out: o}\nloss: m\n"),
         "m.yaml:6:7:", "loss: 'm' is read by op 'o' on line 5"},
    };
    (void)state;
    RUN(cases);
}

static void test_model_errors_unreadable_files(void **state)
{
    smp_graph *graph = NULL;
    (void)state;
    assert_int_equal(smp_graph_read("no/such/model.yaml", &graph), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "no/such/model.yaml"));
    assert_null(graph);
    expect_error("", 0, "m.yaml:1:1:", "empty");
    expect_error("smp: 1\nops: [\0]\n", 16, "m.yaml:2:7:", "control characters");
    for (size_t n = 0; n < sizeof gpt_text; n++) {
        /* Cut anywhere: a model (the last lines may be missing) or one message. */
        smp_status status = smp_graph_parse("m.yaml", gpt_text, n, &graph);
        if (status == SMP_OK)
            smp_graph_destroy(graph);
        else
            assert_int_equal(status, SMP_ERR_INPUT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_errors_top),
        cmocka_unit_test(test_model_errors_let),
        cmocka_unit_test(test_model_errors_inputs),
        cmocka_unit_test(test_model_errors_op_keys),
        cmocka_unit_test(test_model_errors_names),
        cmocka_unit_test(test_model_errors_tensors),
        cmocka_unit_test(test_model_errors_attributes),
        cmocka_unit_test(test_model_errors_ties),
        cmocka_unit_test(test_model_errors_stage_and_cost),
        cmocka_unit_test(test_model_errors_repeat),
        cmocka_unit_test(test_model_errors_loss),
        cmocka_unit_test(test_model_errors_unreadable_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
