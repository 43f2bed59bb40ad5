/* NumPy arrays as data: types, shapes, and headers that lie. */
#include "tests/exec/data/data_fixture.h"

/* A spec "input=folder/name" of a version 1.0 file: header `dictionary`, then `bytes` of values. */
static const char *write_npy(const char *input, const char *name, const char *dictionary,
                             const void *values, size_t bytes)
{
    static char spec[2][MAX_PATH + 400];
    static int turn;
    static unsigned char file[1 << 17] = "\x93NUMPY\x01";
    size_t length = strlen(dictionary);
    assert_true(10 + length + bytes <= sizeof file);
    file[8] = (unsigned char)(length & 255);
    file[9] = (unsigned char)(length >> 8);
    memcpy(file + 10, dictionary, length);
    if (bytes)
        memcpy(file + 10 + length, values, bytes);
    turn = !turn;
    snprintf(spec[turn], sizeof spec[turn], "%s=%s", input,
             write_file(name, file, 10 + length + bytes));
    return spec[turn];
}

static void image_label_model(model *m)
{
    model_init(m);
    model_add(m, "image", SMP_F32, (smp_shape){.n_dim = 2, .dim = {2, 3}}, 0, 0);
    model_add(m, "label", SMP_I32, (smp_shape){.n_dim = 0}, -1, 9);
}

static void test_npy_feeds_inputs(void **state)
{
    (void)state;
    model m;
    image_label_model(&m);
    unsigned char u1[24];
    float f4[24], got[24];
    double f8[24];
    for (int i = 0; i < 24; i++) {
        u1[i] = (unsigned char)(10 * i);
        f4[i] = 0.5f - 0.1f * (float)i;
        f8[i] = 1.0 / (i + 1);
    }
    const char *dictionary[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2, 3), }   \n",
        "{\"shape\":(4L,2L,3L,) , 'fortran_order':False,'descr':'<f8'}",
        "{'fortran_order': False, 'shape': (4, 2, 3), 'descr': '|u1'}"};
    const void *values[] = {f4, f8, u1};
    const size_t bytes[] = {sizeof f4, sizeof f8, sizeof u1};
    const int16_t labels[4] = {3, 9, 0, 1};
    for (int form = 0; form < 3; form++) {
        char image[MAX_PATH + 400], label[MAX_PATH + 128];
        snprintf(image, sizeof image, "%s",
                 write_npy("image", "i.npy", dictionary[form], values[form], bytes[form]));
        snprintf(label, sizeof label, "%s",
                 write_npy("label", "l.npy",
                           "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }", labels, 8));
        smp_data *data = NULL;
        assert_int_equal(open_sources(&m, 2, false, &data, label, image), SMP_OK);
        assert_int_equal(smp_data_samples(data), 4);
        int32_t number[4];
        for (int step = 0; step < 2; step++) {
            assert_int_equal(smp_data_read(data, 2 * step, 2, 0, got + 12 * step), SMP_OK);
            assert_int_equal(smp_data_read(data, 2 * step, 2, 1, number + 2 * step), SMP_OK);
        }
        for (int i = 0; i < 24; i++) {
            float expected = form == 0 ? f4[i] : form == 1 ? (float)f8[i] : (float)u1[i] / 255.0f;
            assert_true(got[i] == expected);
        }
        for (int i = 0; i < 4; i++)
            assert_int_equal(number[i], labels[i]);
        smp_data_close(data);
    }
}

/* Every integer type, with its extremes, into an int32 input. */
static void test_npy_integers(void **state)
{
    (void)state;
    static const struct {
        const char *descr;
        size_t bytes;
        int64_t value[2];
    } types[] = {{"|u1", 1, {0, 255}},
                 {"|i1", 1, {-128, 127}},
                 {"<i2", 2, {INT16_MIN, INT16_MAX}},
                 {">i2", 2, {INT16_MIN, 258}},
                 {">i8", 8, {INT32_MIN, INT32_MAX}},
                 {"<u2", 2, {0, 65535}},
                 {"<i4", 4, {INT32_MIN, INT32_MAX}},
                 {"<i8", 8, {INT32_MIN, INT32_MAX}}};
    model m;
    model_init(&m);
    model_add(&m, "n", SMP_I32, vector(2), INT64_MIN, INT64_MAX);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        char dictionary[128];
        unsigned char raw[16];
        for (int i = 0; i < 2; i++)
            for (size_t b = 0; b < types[t].bytes; b++) {
                const size_t at = types[t].descr[0] == '>' ? types[t].bytes - 1 - b : b;
                raw[(size_t)i * types[t].bytes + at] =
                    (unsigned char)((uint64_t)types[t].value[i] >> (8 * b));
            }
        snprintf(dictionary, sizeof dictionary,
                 "{'descr': '%s', 'fortran_order': False, 'shape': (1, 2)}", types[t].descr);
        const char *spec = write_npy("n", "n.npy", dictionary, raw, 2 * types[t].bytes);
        smp_data *data = NULL;
        int32_t got[2];
        assert_int_equal(open_sources(&m, 1, true, &data, spec, NULL), SMP_OK);
        assert_int_equal(smp_data_read(data, 0, 1, 0, got), SMP_OK);
        assert_int_equal(got[0], types[t].value[0]);
        assert_int_equal(got[1], types[t].value[1]);
        smp_data_close(data);
    }
    const int64_t wide[2] = {0, INT64_C(1) << 31};
    const char *spec =
        write_npy("n", "n.npy", "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 2)}", wide,
                  sizeof wide);
    expect_error(&m, 1, spec, NULL, "sample 0, element 1 is 2147483648: input 'n' is int32");
}

static void test_npy_against_model(void **state)
{
    (void)state;
    model m;
    image_label_model(&m);
    float zeros[24] = {0};
    const unsigned char labels[4] = {0, 9, 10, 1};
    const char *image =
        write_npy("image", "i.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2, 3)}",
                  zeros, 96);
    char kept[MAX_PATH + 400];
    snprintf(kept, sizeof kept, "%s", image);
    expect_error(&m, 1, kept,
                 write_npy("label", "l.npy",
                           "{'descr': '|u1', 'fortran_order': False, 'shape': (4,)}", labels, 4),
                 "l.npy: sample 2, element 0 is 10: input 'label' takes -1 to 9");
    expect_error(&m, 1, kept,
                 write_npy("label", "l.npy",
                           "{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}", labels, 3),
                 "l.npy has 3 samples, but");
    expect_error(&m, 1, kept,
                 write_npy("label", "l.npy",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", zeros, 16),
                 "got type '<f4', expected one of '|u1', '|i1', '<u2', '<i2', '<i4', '<i8' for the "
                 "int32 input");
    expect_error(&m, 1, kept,
                 write_npy("label", "l.npy",
                           "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 1)}", labels, 4),
                 "got array shape (4, 1), expected samples of [] for the input 'label'");
    expect_error(&m, 1, kept,
                 write_npy("label", "l.npy",
                           "{'descr': '|u1', 'fortran_order': False, 'shape': ()}", labels, 1),
                 "got array shape (), expected samples of []");
}

/* Headers that lie, break off or are something else: a message each, never a crash. */
static void test_npy_broken(void **state)
{
    (void)state;
    static const struct {
        const char *dictionary, *part;
    } broken[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (4, 2, 3)}", "Fortran order"},
        {"{'descr': '>i4', 'fortran_order': False, 'shape': (4, 2, 3)}", "got type '>i4'"},
        {"{'descr': '>u1', 'fortran_order': False, 'shape': (4, 2, 3)}", "got type '>u1'"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (4, 2, 3)}", "got type '<c8'"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (4, 2, 3)}", "got type '<i4'"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,)}", "plain type"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5, 2, 3)}", "truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2, 3)}", "too many"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3, 2)}", "shape (4, 3, 2)"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4)}", "(3) is a number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 4}", "a tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 2, 3)}", "a dimension"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,, 2, 3)}", "a dimension"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2, 3", "',' or ')'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1)}", "7 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808, 2, 3)}", "2^63"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 2, 3)}",
         "overflows"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (4, 2, 3)}", "True or False"},
        {"{'descr': '<f4', 'shape': (4, 2, 3)}", "the keys"},
        {"{'descr': '<f4', 'descr': '<f4', 'shape': (4, 2, 3)}", "each once"},
        {"{'descr': '<f4', 'order': False, 'shape': (4, 2, 3)}", "one of the keys"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2, 3)} x", "blanks up to"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (4, 2, 3)}", "',' or '}'"},
        {"{'descr': '<f4", "closing quote"},
        {"{'descr'", "':'"},
        {"{'a very long key that no header would ever have': 1}", "one of the keys"},
        {"", "'{'"},
        {"[]", "'{'"},
    };
    model m;
    model_init(&m);
    model_add(&m, "image", SMP_F32, (smp_shape){.n_dim = 2, .dim = {2, 3}}, 0, 0);
    float values[24] = {0};
    for (size_t b = 0; b < sizeof broken / sizeof *broken; b++)
        expect_error(&m, 1,
                     write_npy("image", "b.npy", broken[b].dictionary, values, sizeof values), NULL,
                     broken[b].part);
    static unsigned char longest[12 + UINT16_MAX + 1 + 96] = "\x93NUMPY\x02\0\0\0\x01";
    memset(longest + 12, ' ', UINT16_MAX + 1);
    memcpy(longest + 12, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2, 3)}", 60);
    char spec[MAX_PATH + 400];
    snprintf(spec, sizeof spec, "image=%s", write_file("b.npy", longest, sizeof longest));
    expect_error(&m, 1, spec, NULL, "an .npy header of 65536 bytes, expected at most 65535");
}

/* A good file cut at every length, and with every byte of its header changed: opened or refused. */
static void test_npy_mutations(void **state)
{
    (void)state;
    static const char dictionary[] =
        "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 2), }\n";
    enum { HEADER = 12 + sizeof dictionary - 1, BYTES = HEADER + 8 };
    unsigned char file[BYTES] = "\x93NUMPY\x02";
    file[8] = sizeof dictionary - 1;
    memcpy(file + 12, dictionary, sizeof dictionary - 1);
    model m;
    model_init(&m);
    model_add(&m, "v", SMP_F32, vector(2), 0, 0);
    char spec[MAX_PATH + 400];
    snprintf(spec, sizeof spec, "v=%s", path_of("mutant.npy"));
    smp_data *data = NULL;
    for (size_t length = 0; length <= sizeof file; length++) {
        write_file("mutant.npy", file, length);
        smp_status status = open_sources(&m, 1, true, &data, spec, NULL);
        assert_int_equal(status, length == sizeof file ? SMP_OK : SMP_ERR_INPUT);
    }
    smp_data_close(data);
    for (size_t at = 0; at < HEADER; at++) {
        for (int change = 1; change < 256; change += 5) {
            file[at] ^= (unsigned char)change;
            write_file("mutant.npy", file, sizeof file);
            file[at] ^= (unsigned char)change;
            data = NULL;
            if (open_sources(&m, 1, true, &data, spec, NULL) == SMP_OK) {
                float value[2];
                assert_int_equal(smp_data_read(data, 0, 1, 0, value), SMP_OK);
                smp_data_close(data);
            } else {
                assert_null(data);
                assert_true(strlen(smp_last_error()) > 0);
            }
        }
    }
}

/* Values in several pieces, and a file that gets shorter while a job reads it. */
static void test_npy_truncated_file(void **state)
{
    (void)state;
    enum { ELEMENTS = 9000 };
    static float values[2 * ELEMENTS], got[ELEMENTS];
    for (int i = 0; i < 2 * ELEMENTS; i++)
        values[i] = (float)i;
    model m;
    model_init(&m);
    model_add(&m, "v", SMP_F32, vector(ELEMENTS), 0, 0);
    smp_data *data = NULL;
    const char *spec =
        write_npy("v", "short.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 9000)}",
                  values, sizeof values);
    assert_int_equal(open_sources(&m, 1, false, &data, spec, NULL), SMP_OK);
    assert_int_equal(smp_data_read(data, 1, 1, 0, got), SMP_OK);
    assert_memory_equal(got, values + ELEMENTS, sizeof got);
    assert_int_equal(truncate(path_of("short.npy"), 40000), 0);
    assert_int_equal(smp_data_read(data, 0, 1, 0, got), SMP_OK);
    assert_memory_equal(got, values, sizeof got);
    assert_int_equal(smp_data_read(data, 1, 1, 0, got), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "short.npy: the data file ends at byte 40000"));
    smp_data_close(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npy_feeds_inputs),  cmocka_unit_test(test_npy_integers),
        cmocka_unit_test(test_npy_against_model), cmocka_unit_test(test_npy_broken),
        cmocka_unit_test(test_npy_mutations),     cmocka_unit_test(test_npy_truncated_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
