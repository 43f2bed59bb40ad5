/* Folders of images: classes, what each form of PNG and JPEG decodes to, and what is refused. */
#include <sys/stat.h>

#include "tests/exec/data/data_fixture.h"

#if defined(SMP_HAVE_PNG) && defined(SMP_HAVE_JPEG)
#include "tests/exec/data/image_files.h"

enum { W = 10, H = 6, PIXELS = W * H };

static unsigned char grey[PIXELS], rgb[3 * PIXELS];
static char spec[MAX_PATH + 400];

static void model_of(model *m, int channels, int64_t classes)
{
    model_init(m);
    model_add(m, "image", SMP_F32, (smp_shape){.n_dim = 3, .dim = {channels, H, W}}, 0, 0);
    model_add(m, "label", SMP_I32, (smp_shape){.n_dim = 0}, 0, classes - 1);
}

static const char *place_of(const char *name)
{
    static char path[2][MAX_PATH + 600];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", path_of("set"), name);
    return path[turn];
}

/* An empty folder set/ with folders for two classes, and the source that names it. */
static void make_set(void)
{
    char command[MAX_PATH + 400];
    snprintf(command, sizeof command, "rm -rf '%s'", path_of("set"));
    assert_int_equal(system(command), 0);
    assert_int_equal(mkdir(path_of("set"), 0700), 0);
    assert_int_equal(mkdir(place_of("b"), 0700), 0);
    assert_int_equal(mkdir(place_of("C"), 0700), 0);
    snprintf(spec, sizeof spec, "image=%s/", path_of("set"));
    for (int i = 0; i < PIXELS; i++)
        grey[i] = (unsigned char)(40 + 3 * i);
    for (int i = 0; i < 3 * PIXELS; i++)
        rgb[i] = (unsigned char)(11 * i);
}

static void png(const char *name, int depth, int type, int interlace, size_t stride,
                const void *rows)
{
    write_png(place_of(name), (png_form){W, H, depth, type, interlace, stride}, rows, NULL, 0);
}

static void grey_png(const char *name)
{
    png(name, 8, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE, W, grey);
}

/* Sample `i` as an input of `channels` gets it: pixels [H][W][of] of a file, grey ones repeated. */
static void expect_pixels(smp_data *data, int i, int channels, const unsigned char *pixels, int of,
                          int within)
{
    float got[3 * PIXELS];
    assert_int_equal(smp_data_read(data, i, 1, 0, got), SMP_OK);
    for (int c = 0; c < channels; c++)
        for (int p = 0; p < PIXELS; p++) {
            const float expected = (float)pixels[p * of + (of == 1 ? 0 : c)] / 255.0f;
            if (within == 0 ? got[c * PIXELS + p] != expected
                            : !(got[c * PIXELS + p] * 255.0f - expected * 255.0f <= within &&
                                expected * 255.0f - got[c * PIXELS + p] * 255.0f <= within))
                fail_msg("sample %d, channel %d, pixel %d: got %g, expected %g", i, c, p,
                         (double)got[c * PIXELS + p], (double)expected);
        }
}

static void test_images_by_class(void **state)
{
    (void)state;
    model m;
    smp_data *data = NULL;
    int32_t label[3];
    make_set();
    grey_png("b/2.png");
    grey_png("b/10.png");
    grey_png("C/z");                   /* what it is, its first bytes say */
    write_file("set/.hidden", "x", 1); /* passed over */
    write_file("set/b/.DS_Store", "x", 1);
    model_of(&m, 1, 2);
    assert_int_equal(open_sources(&m, 1, false, &data, spec, NULL), SMP_OK);
    assert_int_equal(smp_data_samples(data), 3);
    assert_int_equal(smp_data_read(data, 0, 3, 1, label), SMP_OK);
    assert_true(label[0] == 0 && label[1] == 1 && label[2] == 1); /* 'C' stands before 'b' */
    for (int i = 0; i < 3; i++)
        expect_pixels(data, i, 1, grey, 1, 0);
    smp_data_close(data);
    model_of(&m, 1, 1);
    expect_error(&m, 1, spec, NULL, "has 2 classes, 0 to 1: input 'label' takes 0 to 0");
    model_of(&m, 1, 2);
    model_add(&m, "other", SMP_I32, vector(1), 0, 1);
    expect_error(&m, 1, spec, NULL, "the classes could feed the input 'label' or 'other'");
    model_init(&m); /* nothing takes the class */
    model_add(&m, "image", SMP_F32, (smp_shape){.n_dim = 2, .dim = {H, W}}, 0, 0);
    assert_int_equal(open_sources(&m, 1, false, &data, spec, NULL), SMP_OK);
    expect_pixels(data, 0, 1, grey, 1, 0);
    smp_data_close(data);
}

/* Every form of PNG, in the order of the names. */
static void test_images_png(void **state)
{
    (void)state;
    model m;
    smp_data *data = NULL;
    unsigned char alpha[4 * PIXELS], wide[2 * PIXELS], index[PIXELS], bits[2 * H], expected[PIXELS];
    unsigned char coloured[3 * PIXELS];
    const png_color palette[3] = {{1, 2, 3}, {200, 100, 50}, {9, 255, 0}};
    make_set();
    for (int i = 0; i < PIXELS; i++) {
        memcpy(alpha + 4 * i, rgb + 3 * i, 3);
        alpha[4 * i + 3] = (unsigned char)i;
        wide[2 * i] = wide[2 * i + 1] = grey[i]; /* 257 times the value of 8 bits */
        index[i] = (unsigned char)(i % 3);
        memcpy(coloured + 3 * i, &palette[i % 3], 3);
    }
    memset(bits, 0xa5, sizeof bits);
    for (int i = 0; i < PIXELS; i++)
        expected[i] = 0xa5 >> (7 - i % W % 8) & 1 ? 255 : 0;
    grey_png("b/0");
    png("b/1", 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_ADAM7, 3 * W, rgb);
    png("b/2", 8, PNG_COLOR_TYPE_RGB_ALPHA, PNG_INTERLACE_NONE, 4 * W, alpha);
    png("b/3", 16, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE, 2 * W, wide);
    png("b/4", 1, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE, 2, bits);
    write_png(place_of("b/5"), (png_form){W, H, 8, PNG_COLOR_TYPE_PALETTE, 0, W}, index, palette,
              3);
    assert_int_equal(rmdir(place_of("C")), 0);
    model_of(&m, 3, 2);
    assert_int_equal(open_sources(&m, 1, false, &data, spec, NULL), SMP_OK);
    expect_pixels(data, 0, 3, grey, 1, 0);
    expect_pixels(data, 1, 3, rgb, 3, 0);
    expect_pixels(data, 2, 3, rgb, 3, 0);
    expect_pixels(data, 3, 3, grey, 1, 0);
    expect_pixels(data, 4, 3, expected, 1, 0);
    expect_pixels(data, 5, 3, coloured, 3, 0);
    smp_data_close(data);
    model_of(&m, 1, 2);
    expect_error(&m, 1, spec, NULL, "b/1: got an image in colour, expected a grey one");
}

static void test_images_jpeg(void **state)
{
    (void)state;
    model m;
    smp_data *data = NULL;
    unsigned char cmyk[4 * PIXELS] = {0}, flat[3 * PIXELS];
    make_set();
    for (int i = 0; i < 3 * PIXELS; i++) /* one colour: what is lost is rounding */
        flat[i] = (unsigned char)(50 + 60 * (i % 3));
    write_jpeg(place_of("b/0.jpg"), W, H, 1, false, grey);
    write_jpeg(place_of("b/1.jpg"), W, H, 3, false, flat);
    write_jpeg(place_of("b/2.jpg"), W, H, 3, true, flat);
    assert_int_equal(rmdir(place_of("C")), 0);
    model_of(&m, 3, 2);
    assert_int_equal(open_sources(&m, 1, false, &data, spec, NULL), SMP_OK);
    expect_pixels(data, 0, 3, grey, 1, 2);
    expect_pixels(data, 1, 3, flat, 3, 3);
    expect_pixels(data, 2, 3, flat, 3, 3);
    smp_data_close(data);
    write_jpeg(place_of("b/3.jpg"), W, H, 4, false, cmyk);
    expect_error(&m, 1, spec, NULL, "3.jpg: broken JPEG image: neither grey nor of three colours");
}

static void test_images_refused(void **state)
{
    (void)state;
    model m;
    make_set();
    model_of(&m, 1, 2);
    expect_error(&m, 1, spec, NULL, "/C: the folder is empty, expected images");
    grey_png("C/1.png");
    write_file("set/b/1.png", "text", 4);
    expect_error(&m, 1, spec, NULL, "b/1.png: neither a PNG nor a JPEG image");
    write_png(place_of("b/1.png"), (png_form){H, W, 8, PNG_COLOR_TYPE_GRAY, 0, H}, grey, NULL, 0);
    expect_error(&m, 1, spec, NULL, "b/1.png: got an image of 6 x 10 pixels, expected 10 x 6");
    grey_png("b/1.png");
    write_file("set/readme", "x", 1);
    expect_error(&m, 1, spec, NULL, "set/readme: a file beside folders");
    assert_int_equal(unlink(place_of("readme")), 0);
    assert_int_equal(mkdir(place_of("b/deep"), 0700), 0);
    expect_error(&m, 1, spec, NULL, "b/deep: got a folder, expected an image");
    assert_int_equal(rmdir(place_of("b/deep")), 0);
    model_init(&m);
    model_add(&m, "image", SMP_F32, vector(PIXELS), 0, 0);
    expect_error(&m, 1, spec, NULL, "images feed a float32 input of shape [1, H, W]");
    model_of(&m, 1, 2);
    expect_error(&m, 1, "image=nowhere/", NULL, "nowhere/: cannot open the folder");
}

/* Reads what was opened whole, after the file was cut or changed. */
static smp_status read_changed(const model *m, const char *path, const unsigned char *bytes,
                               size_t n)
{
    smp_data *data = NULL;
    float got[3 * PIXELS];
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
    if (open_sources(m, 1, false, &data, spec, NULL) != SMP_OK)
        return SMP_ERR_INPUT;
    const smp_status status = smp_data_read(data, 0, 1, 0, got);
    smp_data_close(data);
    if (status != SMP_OK && !strstr(smp_last_error(), path))
        fail_msg("%s: does not name %s", smp_last_error(), path);
    return status;
}

/* Cut anywhere an image is broken; with any one byte changed it may be another, or broken. */
static void test_images_broken(void **state)
{
    (void)state;
    static unsigned char whole[1 << 16];
    model m;
    model_of(&m, 3, 2);
    for (int form = 0; form < 3; form++) {
        make_set();
        assert_int_equal(rmdir(place_of("C")), 0);
        if (form == 0)
            png("b/1", 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_ADAM7, 3 * W, rgb);
        else
            write_jpeg(place_of("b/1"), W, H, 3, form == 2, rgb);
        char path[MAX_PATH + 600];
        snprintf(path, sizeof path, "%s", place_of("b/1"));
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        const size_t n = fread(whole, 1, sizeof whole, file);
        fclose(file);
        assert_int_equal(read_changed(&m, path, whole, n), SMP_OK);
        for (size_t cut = 1; cut + 1 < n; cut++)
            if (read_changed(&m, path, whole, cut) != SMP_ERR_INPUT)
                fail_msg("form %d: was read from %zu of %zu bytes", form, cut, n);
        int taken = 0;
        for (size_t i = 0; i < n; i++) {
            const unsigned char byte = whole[i];
            whole[i] ^= (unsigned char)(1 << i % 8 | (i % 3 == 0 ? 0xf0 : 0));
            taken += read_changed(&m, path, whole, n) == SMP_OK;
            whole[i] = byte;
        }
        assert_true(form > 0 || taken < 10); /* a PNG has sums over nearly all of it */
    }
}

static int remove_set(void **state)
{
    make_set();
    rmdir(place_of("b"));
    rmdir(place_of("C"));
    rmdir(path_of("set"));
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_images_by_class), cmocka_unit_test(test_images_png),
        cmocka_unit_test(test_images_jpeg),     cmocka_unit_test(test_images_refused),
        cmocka_unit_test(test_images_broken),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_set);
}
#else
/* Built without the libraries: a folder of images is refused, and says so. */
static void test_images_without_libraries(void **state)
{
    (void)state;
    model m;
    char spec[MAX_PATH + 400];
    assert_int_equal(mkdir(path_of("set"), 0700), 0);
#ifndef SMP_HAVE_PNG
    write_file("set/1", "\x89PNG\r\n\x1a\n", 8);
#else
    write_file("set/1", "\xff\xd8\xff\xe0", 4);
#endif
    snprintf(spec, sizeof spec, "image=%s", path_of("set"));
    model_init(&m);
    model_add(&m, "image", SMP_F32, (smp_shape){.n_dim = 2, .dim = {6, 10}}, 0, 0);
    expect_error(&m, 1, spec, NULL, "image: this program was built without lib");
    unlink(path_of("set/1"));
    rmdir(path_of("set"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_images_without_libraries)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
#endif
