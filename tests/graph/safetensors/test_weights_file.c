/* Files of weights: what hostile heads are refused with, values of every type, an index, llm.c's
 * file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/safetensors/safetensors_write.h"
#include "graph/safetensors/weights_file.h"

static char folder[64];
static char path[128];

static int set_up(void **state)
{
    (void)state;
    strcpy(folder, "/var/tmp/smp-weights-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(folder);
}

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t n)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* A file of a head and so many bytes of values; `length` is what its first eight bytes say. */
static void put_head(const char *name, uint64_t length, const char *head, const void *values,
                     size_t n)
{
    static char file[4096];
    const size_t json = strlen(head);
    memcpy(file, &length, 8);
    memcpy(file + 8, head, json);
    memcpy(file + 8 + json, values, n);
    put(name, file, 8 + json + n);
}

static void expect_refused(const char *name, const char *where, const char *reason)
{
    smp_weights_file *file = NULL;
    assert_int_equal(smp_weights_file_open(in_folder(name), &file), SMP_ERR_INPUT);
    assert_null(file);
    if (!strstr(smp_last_error(), path) || !strstr(smp_last_error(), where) ||
        !strstr(smp_last_error(), reason))
        fail_msg("'%s', expected '%s' and '%s'", smp_last_error(), where, reason);
    unlink(path);
}

#define T(shape, offsets) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct hostile {
    const char *head;
    size_t values;
    const char *where, *reason;
} hostile[] = {
    {"", 0, "byte 8:", "expected '{'"},
    {"[]", 0, "byte 8:", "expected '{'"},
    {"{} x", 0, "byte 11:", "after the header's '}'"},
    {"{\"a\":", 0, "byte 13:", "ends inside an entry"},
    {"{\"a\":" T("[1]", "[0,4]") "} x", 4, "byte 63:", "after the header's '}'"},
    {"{\"a\":" T("[1]", "[0,4]") ",}", 4, "byte 62:", "one entry between two commas"},
    {"{\"a\":" T("[1]", "[0,8]") "}", 4, "byte 9:", "the file has 4 bytes of values"},
    {"{\"a\":" T("[1]", "[4,0]") "}", 4, "byte 9:", "data_offsets [4, 0]"},
    {"{\"a\":" T("[1]", "[0,4]") "}", 5, "byte 66:", "1 bytes after the values"},
    {"{\"a\":" T("[1]", "[4,8]") "}", 8, "byte 62:", "a hole before it"},
    {"{\"a\":" T("[2]", "[0,8]") ",\"b\":" T("[1]", "[4,8]") "}", 8,
     "byte 123:", "tensors overlap"},
    {"{\"a\":" T("[3]", "[0,8]") "}", 8, "byte 9:", "8 bytes for F32 of shape 3"},
    {"{\"a\":" T("[4294967296,4294967296]", "[0,0]") "}", 0, "byte 9:", "more than 2^60"},
    {"{\"a\":" T("[1152921504606846976,4]", "[0,0]") "}", 0, "byte 9:", "more than 2^60"},
    {"{\"a\":" T("[-1]", "[0,4]") "}", 4, "byte 9:", "shape: expected a list"},
    {"{\"a\":" T("[1.0]", "[0,4]") "}", 4, "byte 9:", "shape: expected a list"},
    {"{\"a\":" T("[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "byte 9:", "at most 8"},
    {"{\"a\":" T("[99999999999999999999]", "[0,4]") "}", 4, "byte 57:", "too big"},
    {"{\"a\":" T("[1]", "[0,4,8]") "}", 4, "byte 9:", "two whole numbers"},
    {"{\"a\":{\"dtype\":\"F12\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "byte 9:", "'F12'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":1}}", 4,
     "byte 9:", "expected the keys"},
    {"{\"a\":1}", 4, "byte 9:", "expected the keys"},
    {"{\"a\":{\"x\":[[1]]}}", 0, "byte 19:", "nested deeper"},
    {"{\"a\":" T("[1]", "[0,4]") ",\"a\":" T("[1]", "[4,8]") "}", 8, "byte 62:", "is there twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "byte 35:", "duplicate"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "byte 9:", "object of texts"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "byte 27:", "is there twice"},
    {"{\"\xff\":" T("[1]", "[0,4]") "}", 4, "byte 10:", "decode byte 0xff"},
    {"{\"a\\u0000b\":" T("[1]", "[0,4]") "}", 4, "byte 19:", "NUL byte in object key"},
    {"{\"a\" " T("[1]", "[0,4]") "}", 4, "byte 14:", "':' expected"},
};

static void test_weights_file_hostile_heads_are_refused(void **state)
{
    (void)state;
    static const char zeroes[64];
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        const struct hostile *h = &hostile[i];
        put_head("a.safetensors", strlen(h->head), h->head, zeroes, h->values);
        expect_refused("a.safetensors", h->where, h->reason);
    }
    put("a.safetensors", "1234567", 7);
    expect_refused("a.safetensors", "byte 7:", "the file ends");
    put_head("a.safetensors", 3, "{}", "", 0);
    expect_refused("a.safetensors", "byte 0:", "a header of 3 bytes, the file has 10");
    put_head("a.safetensors", UINT64_MAX, "{}", "", 0);
    expect_refused("a.safetensors", "byte 0:", "at most 100000000");
    expect_refused("absent", "absent", "cannot open");
    smp_weights_file *file = NULL;
    assert_int_equal(smp_weights_file_open("/dev/zero", &file), SMP_ERR_INPUT);
    assert_int_equal(smp_weights_file_open(folder, &file), SMP_ERR_INPUT);
}

/* 100 MB of nesting, and of one list: refused at once. */
static void test_weights_file_large_hostile_heads(void **state)
{
    (void)state;
    const size_t n = 100000000;
    char *bytes = malloc(n + 8);
    assert_non_null(bytes);
    for (int list = 0; list <= 1; list++) {
        memset(bytes + 8, list ? '0' : '[', n);
        for (size_t i = 0; list && i < n; i += 2)
            bytes[9 + i] = ',';
        memcpy(bytes, &(uint64_t){n}, 8);
        memcpy(bytes + 8, "{\"a\":[", 6);
        memcpy(bytes + n, "00000]}", 7); /* and one byte more: of the values */
        put("a.safetensors", bytes, n + 8);
        expect_refused("a.safetensors", "byte ", list ? "8 MiB" : "nested deeper");
    }
    free(bytes);
}

static smp_weights_file *opened(const char *name)
{
    smp_weights_file *file = NULL;
    if (smp_weights_file_open(in_folder(name), &file) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return file;
}

static float value_of(smp_weights_file *file, const char *name, int64_t at)
{
    float value = NAN;
    const int32_t tensor = smp_weights_file_find(file, name);
    assert_true(tensor >= 0);
    assert_int_equal(smp_weights_file_read(file, tensor, at, 1, &value), SMP_OK);
    return value;
}

static void test_weights_file_values_of_all_types(void **state)
{
    (void)state;
    static const uint16_t half[] = {0x3c00, 0xc500, 0x0001, 0x8000, 0x7c00, 0x7bff, 0x03ff};
    static const float want[] = {1.0f,     -5.0f,    0x1p-24f,          -0.0f,
                                 INFINITY, 65504.0f, 1023.0f * 0x1p-24f};
    static const uint16_t bf16[] = {0x3f80, 0xc0a0, 0x0001};
    static const float want16[] = {1.0f, -5.0f, 0x1p-133f};
    static const double wide[] = {1.0 / 3.0, 1e300};
    char values[64];
    memcpy(values, half, 14);
    memcpy(values + 14, bf16, 6);
    memcpy(values + 20, wide, 16);
    static const char head[] =
        "{\"h\":{\"dtype\":\"F16\",\"shape\":[7],\"data_offsets\":[0,14]},"
        "\"a \\\"b\\\" \xc3\xa9\":{\"dtype\":\"BF16\",\"shape\":[3,1],\"data_offsets\":[14,20]},"
        "\"d\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[20,36]},"
        "\"none\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[36,36]}}  ";
    put_head("a.safetensors", strlen(head), head, values, 36);
    smp_weights_file *file = opened("a.safetensors");
    assert_int_equal(file->n_tensor, 4);
    for (int i = 0; i < 7; i++)
        assert_memory_equal(&(float){value_of(file, "h", i)}, &want[i], 4);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(&(float){value_of(file, "a \"b\" \xc3\xa9", i)}, &want16[i], 4);
    assert_true(value_of(file, "d", 0) == (float)(1.0 / 3.0));
    assert_true(value_of(file, "d", 1) == INFINITY);
    assert_null(file->tensor[smp_weights_file_find(file, "none")].dtype->to_float);
    smp_weights_file_close(file);
    unlink(path);
}

static void put_json(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

static void test_weights_file_index_of_several(void **state)
{
    (void)state;
    static const char one[] = "{\"a\":" T("[1]", "[0,4]") "}",
                      two[] = "{\"b\":" T("[1]", "[0,4]") "}";
    put_head("1.safetensors", strlen(one), one, &(float){1.5f}, 4);
    put_head("2.safetensors", strlen(two), two, &(float){2.5f}, 4);
    put_json("i.json", "{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"2.safetensors\"}}");
    smp_weights_file *file = opened("i.json");
    assert_true(value_of(file, "a", 0) == 1.5f && value_of(file, "b", 0) == 2.5f);
    smp_weights_file_close(file);
    put_json("i.json", "{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"1.safetensors\"}}");
    expect_refused("i.json", "tensor 'b'", "is not in 1.safetensors");
    put_json("i.json", "{\"weight_map\": {\"a\": \"../1.safetensors\"}}");
    expect_refused("i.json", "weight_map", "one beside it");
    put_json("i.json", "{\"weight_map\": {\"a\": \"3.safetensors\"}}");
    assert_int_equal(smp_weights_file_open(in_folder("i.json"), &file), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "3.safetensors: cannot open"));
    put_json("i.json", "{\"weight_map\": {\"a\": 1}}");
    expect_refused("i.json", "'a'", "the name of a file");
    put_json("i.json", "{\n \"weight_map\" 1}");
    expect_refused("i.json", ":2:", "':' expected");
    unlink(in_folder("1.safetensors"));
    unlink(in_folder("2.safetensors"));
}

/* Two channels, three rows of tokens, one position, two layers. */
static void test_weights_file_of_llmc(void **state)
{
    (void)state;
    enum { C = 2, V = 3, L = 2, N = (V + 1 + 2) * C + L * (12 * C * C + 13 * C) };
    static int32_t head[256] = {20240326, 3, 1, 2, L, 1, C, V};
    static char bytes[1024 + 4 * N];
    memcpy(bytes, head, 1024);
    for (int i = 0; i < N; i++)
        memcpy(bytes + 1024 + 4 * i, &(float){(float)i}, 4);
    put("g.bin", bytes, sizeof bytes);
    smp_weights_file *file = opened("g.bin");
    assert_int_equal(file->n_tensor, 4 + 12 * L);
    assert_true(value_of(file, "wte.weight", 5) == 5.0f);
    assert_true(value_of(file, "wpe.weight", 0) == (float)(V * C));
    const int ln = (V + 1) * C; /* ln_1 of both layers: weights, then biases */
    assert_true(value_of(file, "h1.ln_1.weight", 0) == (float)(ln + C));
    assert_true(value_of(file, "h1.ln_1.bias", 1) == (float)(ln + L * C + C + 1));
    assert_true(value_of(file, "h1.attn.qkv.weight", 0) == (float)(ln + 2 * L * C + 3 * C * C));
    assert_true(value_of(file, "ln_f.bias", C - 1) == (float)(N - 1));
    smp_weights_file_close(file);
    put("g.bin", bytes, sizeof bytes - 4);
    expect_refused("g.bin", "g.bin", "its head says");
    bytes[4] = 4;
    put("g.bin", bytes, sizeof bytes);
    expect_refused("g.bin", "byte 4", "version 4");
}

/* What is written is read again, a name of many signs included. */
static void test_weights_file_written_head_is_read(void **state)
{
    (void)state;
    const smp_written_tensor tensors[] = {{"a\"\\\n\t\x01", {2, {1, 2}}, NULL},
                                          {"number", {0, {0}}, NULL}};
    smp_text head = {0};
    assert_int_equal(smp_safetensors_head("x", tensors, 2, &head), SMP_OK);
    smp_text_append_bytes(&head, "0123456789ab", 12);
    put("a.safetensors", head.data, head.length);
    smp_weights_file *file = opened("a.safetensors");
    assert_int_equal(file->n_tensor, 2);
    assert_string_equal(file->tensor[0].name, tensors[0].name);
    assert_int_equal(file->tensor[1].elements, 1);
    smp_weights_file_close(file);
    smp_text_free(&head);
    unlink(path);
}

/* A build without Jansson reads none of these. */
static bool reads_safetensors(void)
{
    smp_weights_file *file = NULL;
    if (set_up(NULL) != 0)
        return true;
    put_head("a.safetensors", 2, "{}", "", 0);
    const smp_status status = smp_weights_file_open(path, &file);
    smp_weights_file_close(status == SMP_OK ? file : NULL);
    unlink(path);
    tear_down(NULL);
    return status == SMP_OK || !strstr(smp_last_error(), "without Jansson");
}

int main(void)
{
    if (!reads_safetensors())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_file_hostile_heads_are_refused),
        cmocka_unit_test(test_weights_file_large_hostile_heads),
        cmocka_unit_test(test_weights_file_values_of_all_types),
        cmocka_unit_test(test_weights_file_index_of_several),
        cmocka_unit_test(test_weights_file_of_llmc),
        cmocka_unit_test(test_weights_file_written_head_is_read),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
