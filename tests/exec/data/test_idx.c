/* IDX files as data: shapes without channels, types, headers that lie. */
#include "tests/exec/data/data_fixture.h"

enum { IMAGES = 4, PIXELS = 6, HEAD = 16 };

static unsigned char images[HEAD + IMAGES * PIXELS] = {0, 0, 8, 3, 0, 0, 0, IMAGES,
                                                       0, 0, 0, 2, 0, 0, 0, 3};
static const unsigned char labels[8 + IMAGES] = {0, 0, 8, 1, 0, 0, 0, IMAGES, 3, 9, 0, 1};

static const char *spec_of(const char *input, const char *name, const void *data, size_t bytes)
{
    static char spec[2][MAX_PATH + 400];
    static int turn;
    turn = !turn;
    snprintf(spec[turn], sizeof spec[turn], "%s=%s", input, write_file(name, data, bytes));
    return spec[turn];
}

static void model_of(model *m, smp_shape shape)
{
    model_init(m);
    model_add(m, "image", SMP_F32, shape, 0, 0);
    model_add(m, "label", SMP_I32, (smp_shape){.n_dim = 0}, -1, 9);
}

/* One value may not be read as another: all shapes that have the same values in the same order. */
static void test_idx_feeds_inputs(void **state)
{
    (void)state;
    const smp_shape shapes[] = {{.n_dim = 2, .dim = {2, 3}},
                                {.n_dim = 3, .dim = {1, 2, 3}},
                                {.n_dim = 3, .dim = {2, 3, 1}},
                                {.n_dim = 1, .dim = {6}}};
    for (int i = 0; i < IMAGES * PIXELS; i++)
        images[HEAD + i] = (unsigned char)(255 - 10 * i);
    const char *image = spec_of("image", "train-images-idx3-ubyte", images, sizeof images);
    const char *label = spec_of("label", "train-labels-idx1-ubyte", labels, sizeof labels);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        model m;
        smp_data *data = NULL;
        float got[IMAGES * PIXELS];
        int32_t number[IMAGES];
        model_of(&m, shapes[s]);
        assert_int_equal(open_sources(&m, 1, false, &data, image, label), SMP_OK);
        assert_int_equal(smp_data_samples(data), IMAGES);
        assert_int_equal(smp_data_read(data, 0, IMAGES, 0, got), SMP_OK);
        assert_int_equal(smp_data_read(data, 0, IMAGES, 1, number), SMP_OK);
        for (int i = 0; i < IMAGES * PIXELS; i++)
            assert_true(got[i] == (float)images[HEAD + i] / 255.0f);
        for (int i = 0; i < IMAGES; i++)
            assert_int_equal(number[i], labels[8 + i]);
        smp_data_close(data);
    }
    model m;
    model_of(&m, (smp_shape){.n_dim = 2, .dim = {3, 2}});
    expect_error(&m, 1, image, label, "got array shape (4, 2, 3), expected samples of [3, 2]");
}

static void test_idx_types(void **state)
{
    (void)state;
    static const struct {
        unsigned char type, bytes, value[8];
        float expected;
    } types[] = {{0x0d, 4, {0x3f, 0xc0}, 1.5f}, {0x0e, 8, {0xc0, 0x04}, -2.5f}};
    static const struct {
        unsigned char type, bytes, value[4];
        int32_t expected;
    } numbers[] = {
        {0x09, 1, {0xff}, -1}, {0x0b, 2, {0x01, 0x02}, 258}, {0x0c, 4, {0, 1, 0, 2}, 65538}};
    model m;
    smp_data *data = NULL;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        unsigned char file[16] = {0, 0, types[t].type, 1, 0, 0, 0, 1};
        float got;
        memcpy(file + 8, types[t].value, types[t].bytes);
        model_init(&m);
        model_add(&m, "v", SMP_F32, (smp_shape){.n_dim = 0}, 0, 0);
        const char *spec = spec_of("v", "v", file, 8 + (size_t)types[t].bytes);
        assert_int_equal(open_sources(&m, 1, false, &data, spec, NULL), SMP_OK);
        assert_int_equal(smp_data_read(data, 0, 1, 0, &got), SMP_OK);
        assert_true(got == types[t].expected);
        smp_data_close(data);
    }
    for (size_t t = 0; t < sizeof numbers / sizeof *numbers; t++) {
        unsigned char file[12] = {0, 0, numbers[t].type, 1, 0, 0, 0, 1};
        int32_t got;
        memcpy(file + 8, numbers[t].value, numbers[t].bytes);
        model_init(&m);
        model_add(&m, "n", SMP_I32, (smp_shape){.n_dim = 0}, INT64_MIN, INT64_MAX);
        const char *spec = spec_of("n", "n", file, 8 + (size_t)numbers[t].bytes);
        assert_int_equal(open_sources(&m, 1, false, &data, spec, NULL), SMP_OK);
        assert_int_equal(smp_data_read(data, 0, 1, 0, &got), SMP_OK);
        assert_int_equal(got, numbers[t].expected);
        smp_data_close(data);
    }
}

static void expect_broken(const void *data, size_t bytes, const char *part)
{
    model m;
    model_of(&m, (smp_shape){.n_dim = 2, .dim = {2, 3}});
    expect_error(&m, 1, spec_of("image", "broken-idx3-ubyte", data, bytes), NULL, part);
}

static void test_idx_broken(void **state)
{
    (void)state;
    static const struct {
        int at;
        unsigned char byte;
        const char *part;
    } broken[] = {{0, 1, "not an IDX file"},
                  {2, 0x0a, "IDX header, byte 2: got type 0x0a"},
                  {3, 0, "got 0 dimensions"},
                  {3, 255, "got 255 dimensions"},
                  {3, 2, "got array shape (4, 2)"},
                  {4, 0xff, "truncated"},
                  {7, 3, "bytes too many"},
                  {7, 0, "bytes too many"},
                  {11, 9, "got array shape (4, 9, 3)"}};
    unsigned char copy[sizeof images];
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        memcpy(copy, images, sizeof copy);
        copy[broken[i].at] = broken[i].byte;
        expect_broken(copy, sizeof copy, broken[i].part);
    }
    for (size_t bytes = 1; bytes < sizeof images; bytes++)
        expect_broken(images, bytes, bytes < 4 ? "not an IDX file" : "truncated");
    expect_broken("\x1f\x8b\x08", 4, "is compressed: unpack it with gunzip");
    static const unsigned char huge[] = {0,   0,   8,   7,   255, 255, 255, 255, 255, 255, 255,
                                         255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
                                         255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    expect_broken(huge, sizeof huge, "expected samples of [2, 3]");
    model m;
    model_of(&m, (smp_shape){.n_dim = 2, .dim = {2, 3}});
    expect_error(&m, 1, path_of("train-images-idx3-ubyte"), NULL, "without a name");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idx_feeds_inputs),
        cmocka_unit_test(test_idx_types),
        cmocka_unit_test(test_idx_broken),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
