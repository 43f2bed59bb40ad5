/* graph/yaml/yaml.h: places, typed reads, and that no text is too broken or too large to refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/text.h"
#include "graph/yaml/yaml.h"

static smp_yaml *yaml;

static const smp_yaml_node *parse_top(const char *text)
{
    const smp_yaml_node *top = NULL;
    if (smp_yaml_parse("f.yaml", text, strlen(text), &yaml) != SMP_OK)
        fail_msg("%s", smp_last_error());
    if (smp_yaml_top(yaml, &top) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return top;
}

static int release(void **state)
{
    (void)state;
    smp_yaml_destroy(yaml);
    yaml = NULL;
    return 0;
}

static void expect_refused(const char *text, size_t bytes, const char *message)
{
    smp_yaml *got = NULL;
    const smp_yaml_node *top;
    smp_status status = smp_yaml_parse("f.yaml", text, bytes, &got);
    if (status == SMP_OK) {
        status = smp_yaml_top(got, &top);
        smp_yaml_destroy(got);
    } else {
        assert_null(got);
    }
    if (status != SMP_ERR_INPUT)
        fail_msg("accepted: %.200s", text);
    if (!strstr(smp_last_error(), message))
        fail_msg("got '%s', expected '%s'", smp_last_error(), message);
}

static void expect_place(const smp_yaml_node *node, int line, int column)
{
    smp_where where = smp_yaml_where(node);
    assert_string_equal(where.file, "f.yaml");
    assert_int_equal(where.line, line);
    assert_int_equal(where.column, column);
}

static void test_yaml_tree_and_places(void **state)
{
    (void)state;
    const smp_yaml_node *top = parse_top("smp: 1\n"
                                         "list: [a, 'b c', {k: v}]\n"
                                         "# comment\n"
                                         "block:\n"
                                         "  - x\n"
                                         "  - y\n"
                                         "empty: []\n"
                                         "none:\n");
    assert_string_equal(smp_yaml_file(yaml), "f.yaml");
    assert_int_equal(smp_yaml_map_size(top), 5);
    assert_string_equal(smp_yaml_map_key(top, 2), "block");
    assert_int_equal(smp_yaml_map_key_where(top, 2).line, 4);
    const smp_yaml_node *list = smp_yaml_get(top, "list");
    assert_int_equal(smp_yaml_kind_of(list), SMP_YAML_LIST);
    assert_int_equal(smp_yaml_list_size(list), 3);
    expect_place(smp_yaml_list_at(list, 1), 2, 11);
    assert_string_equal(smp_yaml_text(smp_yaml_list_at(list, 1)), "b c");
    assert_true(smp_yaml_quoted(smp_yaml_list_at(list, 1)));
    assert_false(smp_yaml_quoted(smp_yaml_list_at(list, 0)));
    assert_int_equal(smp_yaml_kind_of(smp_yaml_list_at(list, 2)), SMP_YAML_MAP);
    assert_null(smp_yaml_text(list));
    expect_place(smp_yaml_list_at(smp_yaml_get(top, "block"), 1), 6, 5);
    assert_int_equal(smp_yaml_list_size(smp_yaml_get(top, "empty")), 0);
    assert_string_equal(smp_yaml_text(smp_yaml_get(top, "none")), "");
    assert_null(smp_yaml_get(top, "absent"));
    expect_place(top, 1, 1);
    expect_place(list, 2, 7);
    expect_place(smp_yaml_get(top, "none"), 8, 6);
}

static void test_yaml_large_maps(void **state)
{
    enum { KEYS = 3000 };
    smp_text text = {0};
    (void)state;
    smp_text_append(&text, "smp: 1\n");
    for (int i = 0; i < KEYS; i++)
        smp_text_append(&text, "k%d: %d\n", i * 7919 % KEYS, i);
    const smp_yaml_node *top = parse_top(text.data);
    assert_int_equal(smp_yaml_map_size(top), KEYS + 1);
    for (int i = 0; i < KEYS; i++) {
        char key[16];
        int64_t value = -1;
        snprintf(key, sizeof key, "k%d", i * 7919 % KEYS);
        assert_string_equal(smp_yaml_map_key(top, i + 1), key); /* in the order of the file */
        const smp_yaml_node *node = smp_yaml_get(top, key);
        assert_non_null(node);
        assert_int_equal(smp_yaml_int(node, "k", 0, KEYS, &value), SMP_OK);
        assert_int_equal(value, i);
    }
    assert_null(smp_yaml_get(top, "k"));
    assert_null(smp_yaml_get(top, "zzz"));
    smp_text_append(&text, "a: 1\nk9: 1\nb: 1\nk8: 1\n");
    expect_refused(text.data, text.length, "f.yaml:3003:1: duplicate key 'k9'");
    smp_text_free(&text);
}

static void test_yaml_aliases(void **state)
{
    (void)state;
    const smp_yaml_node *top = parse_top("smp: 1\n"
                                         "a: &x {k: 5}\n"
                                         "b: [*x, *x]\n"
                                         "c: &x 7\n"
                                         "d: *x\n");
    const smp_yaml_node *b = smp_yaml_get(top, "b");
    assert_ptr_equal(smp_yaml_list_at(b, 0), smp_yaml_get(top, "a"));
    expect_place(smp_yaml_list_at(b, 1), 2, 4);
    assert_string_equal(smp_yaml_text(smp_yaml_get(top, "d")), "7"); /* the latest anchor */
}

#define REFUSED(text, message) expect_refused(text, sizeof(text) - 1, message)

static void test_yaml_broken_documents(void **state)
{
    (void)state;
    REFUSED("", "f.yaml:1:1: the file is empty");
    REFUSED("# nothing\n", "the file is empty");
    REFUSED("- a\n", "f.yaml:1:1: file: got a list, expected a map that starts with 'smp: 1'");
    REFUSED("SECRET", "file: got a text, expected a map that starts with 'smp: 1'");
    REFUSED("SECRET: 1\n", "f.yaml:1:1: file: got another text as the first key");
    REFUSED("{}", "got nothing as the first key");
    REFUSED("name: x\nsmp: 1\n",
            "f.yaml:1:1: file: got 'name' as the first key, expected 'smp: 1'");
    REFUSED("smp: 2\n", "f.yaml:1:6: smp: got '2', expected format version 1");
    REFUSED("smp: [1]\n", "smp: got a list");
    REFUSED("smp: 1\na: [1, 2\n", "f.yaml:3:1: while parsing a flow sequence");
    REFUSED("smp: 1\na: 1\na: 2\n", "f.yaml:3:1: duplicate key 'a', already given on line 2");
    REFUSED("smp: 1\nsmp: 1\n", "f.yaml:2:1: duplicate key 'smp', already given on line 1");
    REFUSED("smp: 1\na: 1\nsmp: 1\n", "f.yaml:3:1: duplicate key 'smp', already given on line 1");
    REFUSED("smp: 1\n[a]: 2\n", "f.yaml:2:1: got a list as a key");
    REFUSED("[a]: 2\n", "f.yaml:1:1: got a list as a key");
    REFUSED("a\xff", "f.yaml:1:2:");
    REFUSED("smp: 1\na: 'x\n", "f.yaml:");
    REFUSED("smp: 1\n\ta: 1\n", "f.yaml:");
    REFUSED("smp: 1\na: *b\n", "f.yaml:2:4: unknown alias '*b'");
    REFUSED("smp: 1\na: &b [*b]\n", "f.yaml:2:8: alias '*b' stands inside the value");
    REFUSED("smp: 1\na: !!int 5\n", "f.yaml:2:4: got the tag");
    REFUSED("smp: 1\na: !mine {}\n", "f.yaml:2:4: got the tag '!mine'");
    REFUSED("smp: 1\n---\nsmp: 1\n", "f.yaml:2:1: got a second document");
    REFUSED("smp: 1\na: \"x\\0y\"\n", "f.yaml:2:4: the text holds a NUL");
    REFUSED("smp: 1\na: b\0c\n", "f.yaml:2:5: control characters are not allowed");
    REFUSED("smp: 1\na: \xff\n", "f.yaml:2:4:");
    REFUSED("smp: 1\na: \xc3\xa9 \x80\n", "f.yaml:2:6:"); /* columns count characters */
}

static void test_yaml_hostile_documents(void **state)
{
    smp_text text = {0};
    (void)state;
    /* Deep nesting, flow and block. */
    smp_text_append(&text, "smp: 1\na: ");
    for (int i = 0; i < 200000; i++)
        smp_text_append_bytes(&text, "[", 1);
    expect_refused(text.data, text.length, "nested deeper than 100 levels");
    smp_text_free(&text);
    for (int i = 0; i < 300; i++) {
        for (int k = 0; k < i; k++)
            smp_text_append_bytes(&text, " ", 1);
        smp_text_append(&text, "%s:\n", i == 0 ? "smp" : "a");
    }
    expect_refused(text.data, text.length, "nested deeper than 100 levels");
    smp_text_free(&text);
    /* Aliases that double thirty times. */
    smp_text_append(&text, "smp: 1\na0: &a0 [x, x]\n");
    for (int i = 1; i < 30; i++)
        smp_text_append(&text, "a%d: &a%d [*a%d, *a%d]\n", i, i, i - 1, i - 1);
    expect_refused(text.data, text.length, "its aliases expand to more than");
    smp_text_free(&text);
    /* Aliases that nest. */
    smp_text_append(&text, "smp: 1\na0: &a0 [x]\n");
    for (int i = 1; i < 200; i++)
        smp_text_append(&text, "a%d: &a%d [*a%d]\n", i, i, i - 1);
    expect_refused(text.data, text.length, "nested deeper than 100 levels");
    smp_text_free(&text);
    /* Directives, in which the parser is quadratic. */
    for (int i = 0; i < 100000; i++)
        smp_text_append(&text, "%%TAG !a%d! b\n", i);
    smp_text_append(&text, "---\nsmp: 1\n");
    expect_refused(text.data, text.length, "%TAG directives");
    smp_text_free(&text);
}

static void expect_accepted(const smp_text *text)
{
    assert_false(text->failed);
    parse_top(text->data);
    release(NULL);
}

static void append_times(smp_text *text, const char *what, int times)
{
    for (int i = 0; i < times; i++)
        smp_text_append(text, "%s", what);
}

/* What is open below the top map, then a value: itself or by an alias of so many levels. */
static void nest(smp_text *text, const char *anchored, int lists, const char *value)
{
    text->length = 0;
    smp_text_append(text, "smp: 1\na: %s\nb: ", anchored);
    append_times(text, "[", lists);
    smp_text_append(text, "%s", value);
    append_times(text, "]", lists);
    smp_text_append(text, "\n");
}

/* The last depth that is accepted, and the place of the level that is too deep. */
static void test_yaml_greatest_depth(void **state)
{
    static const struct {
        const char *anchored, *value;
        int levels;
    } cases[] = {{"0", "x", 0},       {"0", "[]", 1},          {"0", "{k: []}", 2},
                 {"&x y", "*x", 0},   {"&x []", "*x", 1},      {"&x {}", "*x", 1},
                 {"&x [y]", "*x", 1}, {"&x [[], y]", "*x", 2}, {"&x {k: [y]}", "*x", 2}};
    smp_text text = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[64];
        const int lists = 99 - cases[i].levels; /* the top map is one */
        nest(&text, cases[i].anchored, lists, cases[i].value);
        expect_accepted(&text);
        nest(&text, cases[i].anchored, lists + 1, cases[i].value);
        const bool alias = cases[i].value[0] == '*' && cases[i].levels > 0;
        snprintf(message, sizeof message, "f.yaml:3:%d: nested deeper than 100 levels",
                 alias                 ? 4 + lists + 1
                 : cases[i].levels < 2 ? 4 + 99
                                       : 4 + 99 + 3);
        expect_refused(text.data, text.length, message);
    }
    smp_text_free(&text);
}

/* A million values more than there are, by aliases; sixteen directives; places of what is over. */
static void test_yaml_other_limits(void **state)
{
    smp_text text = {0};
    (void)state;
    for (int more = 0; more < 2; more++) {
        text.length = 0;
        smp_text_append(&text, "smp: &one 1\nx: &x [");
        append_times(&text, "a,", 999);
        smp_text_append(&text, "]\ny: [");
        append_times(&text, "*x,", 1000);
        smp_text_append(&text, "%s]\n", more ? "*one" : "");
        if (more)
            expect_refused(text.data, text.length,
                           "f.yaml:1:1: its aliases expand to more than 1001006 values");
        else
            expect_accepted(&text);
    }
    for (int end = 0; end < 2; end++)
        for (int directives = 16; directives <= 17; directives++) {
            text.length = 0;
            for (int i = 0; i < directives; i++)
                smp_text_append(&text, "%%TAG !a%d! b%s", i, end ? "\r" : "\n");
            smp_text_append(&text, "---\nsmp: 1\n");
            if (directives == 16)
                expect_accepted(&text);
            else
                expect_refused(text.data, text.length,
                               end ? "more than 16 %TAG directives, expected none"
                                   : "f.yaml:17:1: more than 16 %TAG directives, expected none");
        }
    text.length = 0;
    append_times(&text, "%TAG\n", 16);
    smp_text_append(&text, "%%TAG"); /* cut short at the end of the file */
    expect_refused(text.data, text.length, "f.yaml:17:1: more than 16 %TAG directives");
    text.length = 0;
    append_times(&text, "# %TAG\n", 20); /* none of them begins a line */
    smp_text_append(&text, "smp: 1\n");
    expect_accepted(&text);
    smp_text_free(&text);
}

/* Maps that are searched linearly, and the smallest that is not: which repetition is reported. */
static void test_yaml_repeated_keys(void **state)
{
    smp_text text = {0};
    (void)state;
    for (int keys = 3; keys <= 12; keys++) {
        char message[80];
        text.length = 0;
        smp_text_append(&text, "smp: 1\n");
        for (int i = 1; i < keys - 2; i++)
            smp_text_append(&text, "z%d: 1\n", 20 - i);
        const size_t length = text.length;
        smp_text_append(&text, "b: 1\na: 1\n");
        expect_accepted(&text);
        smp_text_append(&text, "b: 2\na: 2\nb: 3\n");
        snprintf(message, sizeof message,
                 "f.yaml:%d:1: duplicate key 'b', already given on line %d", keys + 1, keys - 1);
        expect_refused(text.data, text.length, message);
        for (int last = 0; last < 2; last++) { /* the first in the alphabet, and the last */
            const char *key = last ? "zz" : "a";
            text.length = length;
            smp_text_append(&text, "b: 1\n%s: 1\nc: 1\n%s: 2\n", key, key);
            snprintf(message, sizeof message, "f.yaml:%d:1: duplicate key '%s'", keys + 2, key);
            expect_refused(text.data, text.length, message);
        }
        text.length = length;
        text.data[length] = '\0';
        const smp_yaml_node *top = parse_top(text.data);
        assert_int_equal(smp_yaml_map_size(top), keys - 2);
        for (int i = 0; i < keys - 2; i++)
            assert_ptr_equal(smp_yaml_get(top, smp_yaml_map_key(top, i)),
                             smp_yaml_map_value(top, i));
        assert_null(smp_yaml_get(top, ""));
        assert_null(smp_yaml_get(top, "zz"));
        release(NULL);
    }
    smp_text_free(&text);
}

/* Of a file of another kind, which may be secret, no word is shown. */
static void test_yaml_shows_words_of_its_own_files(void **state)
{
    (void)state;
    REFUSED("a: smp\nb: *secret\n", "f.yaml:2:4: unknown alias '*...', expected an anchor '&...'");
    REFUSED("- [smp, *secret]\n", "f.yaml:1:9: unknown alias '*...'");
    REFUSED("&smp smp\n", "f.yaml:1:1: file: got a text");
    REFUSED("a: 1\nsecret: 1\nsecret: 2\n",
            "f.yaml:3:1: duplicate key '...', already given on line 2");
    REFUSED("a: !secret 1\n", "f.yaml:1:4: got the tag '...', expected a value without a tag");
    REFUSED("a: &secret [*secret]\n", "f.yaml:1:13: alias '*...' stands inside");
    REFUSED("abcdefghijklmnopqrstuvwx: 1\n", "got 'abcdefghijklmnopqrstuvwx' as the first key");
    REFUSED("abcdefghijklmnopqrstuvwxy: 1\n", "got another text as the first key");
    REFUSED("smp: 1\na: *"
            "0123456789012345678901234567890123456789012345678901234567890123456789012345678901",
            "'*01234567890123456789012345678901234567890123456789012345678901234567890123456789', "
            "expected an anchor '&"
            "01234567890123456789012345678901234567890123456789012345678901234567890123456789' "
            "before it");
    smp_text text = {0};
    smp_text_append(&text, "smp: ! 1\n? b\n: ! {}\n"); /* the tag that says nothing */
    expect_accepted(&text);
    smp_text_free(&text);
}

static void test_yaml_truncated_at_every_byte(void **state)
{
    static const char text[] = "smp: 1\n"
                               "a: &x {k: [1, \"two\", 'three'], l: |\n"
                               "  text\n"
                               " , m: *x}\n"
                               "b: # comment\n"
                               "  - ? q\n"
                               "    : r\n";
    (void)state;
    for (size_t n = 0; n < sizeof text; n++) {
        smp_yaml *got = NULL;
        smp_status status = smp_yaml_parse("f.yaml", text, n, &got);
        assert_true(status == SMP_OK || status == SMP_ERR_INPUT);
        assert_true((status == SMP_OK) == (got != NULL));
        smp_yaml_destroy(got);
    }
}

static void test_yaml_known_keys(void **state)
{
    static const char *const known[] = {"smp", "memory", "compute"};
    (void)state;
    const smp_yaml_node *top = parse_top("smp: 1\nmemory: 1\ncompute: 2\n");
    assert_int_equal(smp_yaml_known_keys(top, "device", known, 3), SMP_OK);
    assert_int_equal(smp_yaml_known_keys(top, "device", known, 2), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(),
                        "f.yaml:3:1: device: unknown key 'compute', expected one of smp, memory");
    release(state);
    top = parse_top("smp: 1\nmemroy: 1\n");
    assert_int_equal(smp_yaml_known_keys(top, "device", known, 3), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(),
                        "f.yaml:2:1: device: unknown key 'memroy', did you mean 'memory'?");
}

static void test_yaml_typed_reads(void **state)
{
    (void)state;
    const smp_yaml_node *top =
        parse_top("smp: 1\nt: text\ni: 12\nd: 2.5\nb: yes\nq: \"true\"\nsize: 2GiB\nrate: 3GB/s\n"
                  "flops: 4GFLOP/s\nlist: []\nmap: {}\nnone: ~\nzero: 0\n");
    const char *text;
    bool flag;
    int64_t i;
    double d;
#define AT(key) smp_yaml_get(top, key)
    assert_int_equal(smp_yaml_string(AT("t"), "t", &text), SMP_OK);
    assert_string_equal(text, "text");
    assert_int_equal(smp_yaml_int(AT("i"), "i", 0, 12, &i), SMP_OK);
    assert_int_equal(i, 12);
    assert_int_equal(smp_yaml_double(AT("d"), "d", 0, 3, &d), SMP_OK);
    assert_true(d == 2.5);
    assert_int_equal(smp_yaml_bool(AT("b"), "b", &flag), SMP_OK);
    assert_true(flag);
    assert_int_equal(smp_yaml_bytes(AT("size"), "size", &i), SMP_OK);
    assert_int_equal(i, (int64_t)2 << 30);
    assert_int_equal(smp_yaml_bytes_per_s(AT("rate"), "rate", &d), SMP_OK);
    assert_true(d == 3e9);
    assert_int_equal(smp_yaml_flops(AT("flops"), "flops", &d), SMP_OK);
    assert_true(d == 4e9);
    assert_int_equal(smp_yaml_list(AT("list"), "list"), SMP_OK);
    assert_int_equal(smp_yaml_map(AT("map"), "map"), SMP_OK);

#define WRONG(call, message)                                                                       \
    do {                                                                                           \
        assert_int_equal(call, SMP_ERR_INPUT);                                                     \
        assert_string_equal(smp_last_error(), message);                                            \
    } while (0)
    WRONG(smp_yaml_string(AT("none"), "x", &text), "f.yaml:12:7: x: got nothing, expected a text");
    WRONG(smp_yaml_string(AT("list"), "x", &text), "f.yaml:10:7: x: got a list, expected a text");
    WRONG(smp_yaml_int(AT("i"), "x", 13, 20, &i),
          "f.yaml:3:4: x: got '12', expected an integer from 13 to 20");
    WRONG(smp_yaml_int(AT("d"), "x", 1, INT64_MAX, &i),
          "f.yaml:4:4: x: got '2.5', expected an integer of at least 1");
    WRONG(smp_yaml_double(AT("t"), "x", 0, 1e308, &d),
          "f.yaml:2:4: x: got 'text', expected a number of at least 0");
    WRONG(smp_yaml_bool(AT("q"), "x", &flag), "f.yaml:6:4: x: got 'true', expected true or false");
    WRONG(smp_yaml_bytes(AT("t"), "x", &i),
          "f.yaml:2:4: x: got 'text', expected a size such as 80GB, 512MiB or 1024, up to 1024PiB");
    WRONG(smp_yaml_bytes_per_s(AT("zero"), "x", &d),
          "f.yaml:13:7: x: got '0', expected a rate such as 450GB/s, from 1 to 1e21 per second");
    WRONG(
        smp_yaml_flops(AT("rate"), "x", &d),
        "f.yaml:8:7: x: got '3GB/s', expected a rate such as 60TFLOP/s, from 1 to 1e21 per second");
    WRONG(smp_yaml_map(AT("list"), "x"), "f.yaml:10:7: x: got a list, expected a map");
    WRONG(smp_yaml_list(AT("map"), "x"), "f.yaml:11:6: x: got a map, expected a list");
}

/* Numbers of which a time, a rate or a sum would be infinite or leave 64 bits. */
static void test_yaml_bounds_of_numbers(void **state)
{
    static const struct {
        const char *text;
        bool us, rate, or_none, bytes; /* whether they are read as such */
    } cases[] = {
        {"0", true, false, true, true},
        {"-0.0", true, false, true, true},
        {"-1", false, false, false, false},
        {"1", true, true, true, true},
        {"0.99", true, false, false, true},
        {"1e-250", true, false, false, true},
        {"9e-251", false, false, false, true},
        {"1e-320", false, false, false, true},
        {"1e15", true, true, true, true},
        {"1.1e15", false, true, true, true},
        {"1152921504606846976", false, true, true, true},
        {"1152921504606846977", false, true, true, false},
        {"1e21", false, true, true, false},
        {"1.01e21", false, false, false, false},
        {"1e300", false, false, false, false},
        {"1e999", false, false, false, false},
        {"text", false, false, false, false},
    };
    double value;
    int64_t bytes;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "smp: 1\nx: %s\n", cases[i].text);
        const smp_yaml_node *node = smp_yaml_get(parse_top(text), "x");
        const bool read[] = {smp_yaml_us(node, "x", &value) == SMP_OK,
                             smp_yaml_rate(node, "x", false, &value) == SMP_OK,
                             smp_yaml_bytes_per_s(node, "x", &value) == SMP_OK,
                             smp_yaml_flops(node, "x", &value) == SMP_OK,
                             smp_yaml_rate(node, "x", true, &value) == SMP_OK,
                             smp_yaml_bytes(node, "x", &bytes) == SMP_OK};
        const bool expected[] = {cases[i].us,   cases[i].rate,    cases[i].rate,
                                 cases[i].rate, cases[i].or_none, cases[i].bytes};
        for (size_t k = 0; k < sizeof read / sizeof read[0]; k++)
            if (read[k] != expected[k])
                fail_msg("'%s', read %zu: %s", cases[i].text, k, read[k] ? "read" : "refused");
        assert_int_equal(strncmp(smp_last_error(), "f.yaml:2:4: x: got '", 20), 0);
        smp_yaml_destroy(yaml);
        yaml = NULL;
    }
}

static void test_yaml_long_values_are_cut_between_characters(void **state)
{
    smp_text text = {0};
    int64_t value;
    (void)state;
    smp_text_append(&text, "smp: 1\na: x");
    for (int i = 0; i < 100; i++)
        smp_text_append(&text, "\xc3\xa9");
    const smp_yaml_node *top = parse_top(text.data);
    assert_int_equal(smp_yaml_int(smp_yaml_get(top, "a"), "a", 0, 1, &value), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "\xc3\xa9...'"));
    smp_text_free(&text);
}

static void test_yaml_read_names_a_missing_file(void **state)
{
    (void)state;
    assert_int_equal(smp_yaml_read("no/such/file.yaml", &yaml), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "no/such/file.yaml: cannot open"));
    assert_null(yaml);
}

#define TEST(name) cmocka_unit_test_teardown(name, release)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_yaml_tree_and_places),
        TEST(test_yaml_large_maps),
        TEST(test_yaml_aliases),
        TEST(test_yaml_broken_documents),
        TEST(test_yaml_hostile_documents),
        TEST(test_yaml_greatest_depth),
        TEST(test_yaml_other_limits),
        TEST(test_yaml_repeated_keys),
        TEST(test_yaml_shows_words_of_its_own_files),
        TEST(test_yaml_truncated_at_every_byte),
        TEST(test_yaml_known_keys),
        TEST(test_yaml_typed_reads),
        TEST(test_yaml_bounds_of_numbers),
        TEST(test_yaml_long_values_are_cut_between_characters),
        TEST(test_yaml_read_names_a_missing_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
