/* Data sources: what a sample is, the order of samples, and what unusable files answer. */
#include <math.h>
#include <sys/stat.h>

#include "tests/exec/data/data_fixture.h"

static void test_data_order_is_a_permutation(void **state)
{
    (void)state;
    static bool seen[2000];
    for (int64_t n = 1; n < 2000; n += n < 40 ? 1 : 173) {
        for (uint64_t pass = 0; pass < 3; pass++) {
            smp_order order;
            smp__order_init(&order, n, 42, pass);
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < n; i++) {
                int64_t at = smp__order_at(&order, i);
                assert_in_range(at, 0, n - 1);
                assert_false(seen[at]);
                seen[at] = true;
            }
        }
    }
}

/* Four samples have 24 orders: over many passes every one is drawn about equally often. */
static void test_data_order_is_fair(void **state)
{
    (void)state;
    int count[256] = {0};
    const int passes = 24000;
    for (int pass = 0; pass < passes; pass++) {
        smp_order order;
        smp__order_init(&order, 4, 7, (uint64_t)pass);
        int code = 0;
        for (int i = 0; i < 4; i++)
            code = code << 2 | (int)smp__order_at(&order, i);
        count[code]++;
    }
    int orders = 0;
    for (int code = 0; code < 256; code++) {
        orders += count[code] > 0;
        assert_true(count[code] == 0 || (count[code] > 800 && count[code] < 1200));
    }
    assert_int_equal(orders, 24);
}

static void test_data_order_of_huge_sets(void **state)
{
    (void)state;
    const int64_t sizes[] = {INT64_C(1) << 32, (INT64_C(1) << 32) + 1, INT64_C(1) << 55};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        smp_order order, other;
        smp__order_init(&order, sizes[s], 1, 0);
        smp__order_init(&other, sizes[s], 1, 1);
        int same = 0;
        for (int64_t i = 0; i < 1000; i++) {
            int64_t at = smp__order_at(&order, sizes[s] - 1 - i);
            assert_true(at >= 0 && at < sizes[s]);
            same += at == smp__order_at(&other, sizes[s] - 1 - i);
        }
        assert_true(same < 5);
    }
}

static void test_data_text_windows(void **state)
{
    (void)state;
    model m;
    model_tokens(&m, 4, 256);
    smp_data *data = NULL;
    /* 14 bytes: (14 - 1) / 4 = 3 samples; the last byte used is the 13th. */
    const char *path = write_file("t.txt", "abcdefghijklm\xff", 14);
    assert_int_equal(open_sources(&m, 1, false, &data, path, NULL), SMP_OK);
    assert_int_equal(smp_data_samples(data), 3);
    for (int step = 0; step < 7; step++) {
        int32_t tokens[4], targets[4];
        assert_int_equal(smp_data_read(data, step, 1, 0, tokens), SMP_OK);
        assert_int_equal(smp_data_read(data, step, 1, 1, targets), SMP_OK);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(tokens[i], 'a' + 4 * (step % 3) + i);
            assert_int_equal(targets[i], 'a' + 4 * (step % 3) + i + 1);
        }
    }
    smp_data_close(data);

    /* A model without targets has the same samples. */
    model_init(&m);
    model_add(&m, "tokens", SMP_I32, vector(4), 0, 255);
    assert_int_equal(open_sources(&m, 1, false, &data, path, NULL), SMP_OK);
    assert_int_equal(smp_data_samples(data), 3);
    smp_data_close(data);
    smp_data_close(NULL);
}

/* Each pass gives every sample once; passes differ; any part can be read by itself, also one that
 * begins in a pass and ends in the next. */
static void test_data_shuffled_passes(void **state)
{
    (void)state;
    enum { N = 107 };
    model m;
    model_tokens(&m, 1, 256);
    unsigned char text[N + 1];
    for (int i = 0; i <= N; i++)
        text[i] = (unsigned char)i;
    const char *path = write_file("s.txt", text, sizeof text);
    smp_data *data = NULL;
    assert_int_equal(open_sources(&m, 10, true, &data, path, NULL), SMP_OK);
    assert_int_equal(smp_data_samples(data), N);
    int32_t passes[2 * N];
    for (int first = 0; first < 2 * N; first += first == 2 * N - 4 ? 4 : 10)
        assert_int_equal(smp_data_read(data, first, first == 2 * N - 4 ? 4 : 10, 0, passes + first),
                         SMP_OK);
    for (int pass = 0; pass < 2; pass++) {
        bool seen[N] = {false};
        for (int i = 0; i < N; i++) {
            assert_in_range(passes[pass * N + i], 0, N - 1);
            assert_false(seen[passes[pass * N + i]]);
            seen[passes[pass * N + i]] = true;
        }
    }
    assert_memory_not_equal(passes, passes + N, N * sizeof passes[0]);

    for (int first = 2 * N - 5; first >= 0; first -= 3) {
        int32_t tokens[5], targets[5];
        assert_int_equal(smp_data_read(data, first, 5, 0, tokens), SMP_OK);
        assert_int_equal(smp_data_read(data, first, 5, 1, targets), SMP_OK);
        assert_memory_equal(tokens, passes + first, sizeof tokens);
        for (int i = 0; i < 5; i++)
            assert_int_equal(targets[i], tokens[i] + 1);
    }
    int32_t one = -7;
    assert_int_equal(smp_data_read(data, 10, 0, 0, &one), SMP_OK);
    assert_int_equal(smp_data_read(data, INT64_MAX, INT64_MAX, 0, &one), SMP_ERR_INPUT);
    assert_int_equal(smp_data_read(data, -1, 1, 0, &one), SMP_ERR_INPUT);
    assert_int_equal(smp_data_read(data, 0, -1, 0, &one), SMP_ERR_INPUT);
    assert_int_equal(smp_data_read(data, 0, 1, 2, &one), SMP_ERR_INPUT);
    assert_int_equal(one, -7);
    assert_int_equal(smp_data_read(data, INT64_MAX - 1, 1, 0, &one), SMP_OK);
    smp_data_close(data);
}

/* A checkpoint is resumed on the data that it was trained on: their mark has their size and both
 * ends of every file. */
static void test_data_mark(void **state)
{
    (void)state;
    enum { SIZE = 3 * SMP_DATA_PIECE };
    model m;
    model_tokens(&m, 1, 256);
    unsigned char *text = malloc(SIZE + 1);
    assert_non_null(text);
    memset(text, 'a', SIZE + 1);
    /* another first byte, another last one, one more; last of all as at first */
    const int changed[] = {-1, 0, SIZE - 1, SIZE, -1};
    uint64_t mark[5];
    int64_t bytes[5];
    for (int i = 0; i < 5; i++) {
        smp_data *data = NULL;
        if (changed[i] >= 0)
            text[changed[i]] = 'b';
        const char *path = write_file("s.txt", text, SIZE + (changed[i] == SIZE));
        assert_int_equal(open_sources(&m, 1, false, &data, path, NULL), SMP_OK);
        assert_int_equal(smp_data_mark(data, &bytes[i], &mark[i]), SMP_OK);
        smp_data_close(data);
        memset(text, 'a', SIZE + 1);
    }
    for (int i = 1; i < 4; i++)
        for (int k = 0; k < i; k++)
            assert_true(mark[i] != mark[k]);
    assert_true(mark[4] == mark[0] && bytes[4] == SIZE && bytes[3] == SIZE + 1);
    free(text);
}

static void test_data_seed_changes_order(void **state)
{
    (void)state;
    model m;
    model_tokens(&m, 1, 256);
    unsigned char text[101];
    for (int i = 0; i < 101; i++)
        text[i] = (unsigned char)i;
    const char *const source = write_file("s.txt", text, sizeof text);
    int32_t order[3][100];
    const uint64_t seed[3] = {1, 2, 1};
    for (int i = 0; i < 3; i++) {
        smp_data *data = NULL;
        smp_data_options options = {.sources = &source,
                                    .n_source = 1,
                                    .global_batch = 100,
                                    .seed = seed[i],
                                    .shuffle = true};
        assert_int_equal(smp_data_open(&m.graph, &options, &data), SMP_OK);
        assert_int_equal(smp_data_read(data, 0, 100, 0, order[i]), SMP_OK);
        smp_data_close(data);
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    assert_memory_equal(order[0], order[2], sizeof order[0]);
}

static void put_u32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static void test_data_bin(void **state)
{
    (void)state;
    model m;
    model_tokens(&m, 2, 60000);
    unsigned char file[1024 + 10] = {0};
    const uint16_t token[5] = {1, 300, 59999, 256, 0};
    put_u32(file, 20240520);
    put_u32(file + 4, 1);
    put_u32(file + 8, 5);
    for (int i = 0; i < 5; i++) {
        file[1024 + 2 * i] = (unsigned char)(token[i] & 255);
        file[1024 + 2 * i + 1] = (unsigned char)(token[i] >> 8);
    }
    const char *const forms[2] = {write_file("headed.bin", file, sizeof file),
                                  write_file("bare.bin", file + 1024, 10)};
    for (int form = 0; form < 2; form++) {
        smp_data *data = NULL;
        int32_t got[2][4];
        assert_int_equal(open_sources(&m, 2, false, &data, forms[form], NULL), SMP_OK);
        assert_int_equal(smp_data_samples(data), 2);
        assert_int_equal(smp_data_read(data, 0, 2, 0, got[0]), SMP_OK);
        assert_int_equal(smp_data_read(data, 0, 2, 1, got[1]), SMP_OK);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(got[0][i], token[i]);
            assert_int_equal(got[1][i], token[i + 1]);
        }
        smp_data_close(data);
    }

    model_tokens(&m, 2, 59999);
    expect_error(&m, 1, forms[0], NULL, "headed.bin: token 2 (byte offset 1028) is 59999: input");
    expect_error(&m, 1, forms[1], NULL, "bare.bin: token 2 (byte offset 4) is 59999: input 'tok");
    expect_error(&m, 1, forms[1], NULL, "takes 0 to 59998 (lookup 'op')");
    expect_error(&m, 1, write_file("odd.bin", file + 1024, 9), NULL, "multiple of 2");
    expect_error(&m, 1, write_file("cut.bin", file, 1000), NULL, "1000 bytes");
    expect_error(&m, 1, write_file("cut.bin", file, 1030), NULL, "promises 5 tokens (10 bytes");
    put_u32(file + 8, 4);
    expect_error(&m, 1, write_file("long.bin", file, sizeof file), NULL, "promises 4 tokens");
    put_u32(file + 8, UINT32_MAX);
    expect_error(&m, 1, write_file("long.bin", file, sizeof file), NULL, "promises 4294967295");
    put_u32(file + 4, 7);
    expect_error(&m, 1, write_file("new.bin", file, sizeof file), NULL, "version 7");
}

static void test_data_text_index_checks(void **state)
{
    (void)state;
    model m;
    model_tokens(&m, 4, 128);
    const char *path = write_file("u.txt", "one\ntwo\nth\xc3\xa9", 12);
    expect_error(&m, 1, path, NULL, "u.txt:3:3: byte 195 at offset 10: input 'tokens' takes 0 to");
    model_tokens(&m, 4, 256);
    m.bound[1][0].i = 11; /* a bound of the other input, from below */
    expect_error(&m, 1, path, NULL, "u.txt:1:4: byte 10 at offset 3: input 'targets' takes 11 to");
}

static void test_data_unusable_files(void **state)
{
    (void)state;
    model m;
    model_tokens(&m, 4, 256);
    expect_error(&m, 1, path_of("absent.txt"), NULL, "absent.txt: cannot open");
    expect_error(&m, 1, folder, NULL, "got a directory");
    expect_error(&m, 1, write_file("empty.txt", "", 0), NULL, "is empty");
    expect_error(&m, 1, write_file("short.txt", "abcd", 4), NULL, "4 bytes are too few");
    expect_error(&m, 3, write_file("few.txt", "abcdefghijkl", 12), NULL,
                 "few.txt: got 2 samples, expected 3 or more");
    expect_error(&m, 0, path_of("few.txt"), NULL, "global batch");
    expect_error(&m, 1, "", NULL, "cannot open");
    const char *fifo = path_of("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    expect_error(&m, 1, fifo, NULL, "a pipe");
}

static void test_data_sources_fit_the_model(void **state)
{
    (void)state;
    model m;
    const char *text = write_file("ok.txt", "abcdefghijkl", 12);
    model_tokens(&m, 4, 256);
    expect_error(&m, 1, NULL, NULL, "needs a source for each of its inputs 'tokens', 'targets'");
    m.tensor[1].shape = vector(3);
    expect_error(&m, 1, text, NULL, "input 'targets' has shape [3], expected [4]");
    m.tensor[0].shape = (smp_shape){.n_dim = 2, .dim = {4, 1}};
    expect_error(&m, 1, text, NULL, "has shape [4, 1]");
    m.tensor[0].dtype = SMP_F32;
    expect_error(&m, 1, text, NULL, "input 'tokens' is float32");
    model_tokens(&m, 4, 256);
    model_add(&m, "image", SMP_F32, vector(2), 0, 0);
    expect_error(&m, 1, text, NULL, "input 'image' of model 'model' has no data");
    model_init(&m);
    expect_error(&m, 1, text, NULL, "has no inputs");
    model_add(&m, "image", SMP_F32, vector(2), 0, 0);
    expect_error(&m, 1, text, NULL, "model 'model' has 'image'");
    expect_error(&m, 1, "imgae=x.npy", NULL, "did you mean 'image'?");
    expect_error(&m, 1, "x.npy", NULL, "without a name, expected input=file.npy");
    expect_error(&m, 1, "=x.npy", NULL, "without a name");
    expect_error(&m, 1, "image=x.npz", NULL, "x.npz: cannot open");
}

/* Every kind says what it is, and feeds a named input or `tokens` and `targets`. */
static void test_data_registry(void **state)
{
    (void)state;
    for (const smp_source_kind *const *k = smp__source_kinds(); *k; k++) {
        const smp_source_kind *kind = *k;
        if (!kind->form || !kind->claims || !kind->open || !kind->read || !kind->check)
            fail_msg("%s: not complete", kind->name);
        if (kind->named != (strncmp(kind->form, "INPUT=", 6) == 0))
            fail_msg("%s: its form is %s", kind->name, kind->form);
        if (kind->claims("x.other", kind->named) && kind->named)
            fail_msg("%s: claims a file that is not there", kind->name);
        for (const smp_source_kind *const *other = smp__source_kinds(); other < k; other++)
            if (strcmp((*other)->name, kind->name) == 0 || strcmp((*other)->form, kind->form) == 0)
                fail_msg("%s: a kind of this name or form stands before it", kind->name);
    }
}

static void test_data_array_of_no_kind(void **state)
{
    (void)state;
    char spec[MAX_PATH + 400];
    model m;
    model_init(&m);
    model_add(&m, "other", SMP_F32, vector(2), 0, 0);
    model_add(&m, "image", SMP_F32, vector(2), 0, 0);
    snprintf(spec, sizeof spec, "image=%s", write_file("none.raw", "abcdefgh", 8));
    expect_error(&m, 1, spec, NULL,
                 "none.raw: no array for the input 'image', expected INPUT=FILE");
}

/* Files take the lowest descriptor that is free. */
static int next_descriptor(void)
{
    int descriptor = dup(STDIN_FILENO);
    assert_true(descriptor >= 0 && close(descriptor) == 0);
    return descriptor;
}

static void test_data_closes_its_files(void **state)
{
    (void)state;
    model m;
    smp_data *data = NULL;
    model_tokens(&m, 4, 256);
    const char *path = write_file("closed.txt", "abcdefghijkl", 12);
    const int before = next_descriptor();
    assert_int_equal(open_sources(&m, 1, false, &data, path, NULL), SMP_OK);
    assert_true(next_descriptor() > before);
    smp_data_close(data);
    assert_int_equal(next_descriptor(), before);
    expect_error(&m, 9, path, path, "closed.txt and 1 more: got 4 samples");
    assert_int_equal(next_descriptor(), before);
    expect_error(&m, 1, path, path_of("absent.txt"), "cannot open");
    assert_int_equal(next_descriptor(), before);
    smp_data_close(NULL);
}

/* A file that gets shorter while a job reads it: an error, not SIGBUS. Windows that are still there
 * can be read, also those that are read in several pieces. */
static void test_data_truncated_file(void **state)
{
    (void)state;
    enum { LENGTH = 20000, SAMPLES = 4, BYTES = 2 * (LENGTH * SAMPLES + 1) };
    static unsigned char bytes[BYTES];
    static int32_t tokens[LENGTH];
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i % 2 == 0 ? (i / 2 + i / 5000) % 251 : 0);
    model m;
    model_tokens(&m, LENGTH, 256);
    for (int text = 0; text < 2; text++) {
        smp_data *data = NULL;
        const int unit = text ? 1 : 2;
        const char *path = write_file(text ? "short.txt" : "short.bin", bytes, sizeof bytes);
        assert_int_equal(open_sources(&m, 1, false, &data, path, NULL), SMP_OK);
        assert_int_equal(truncate(path, LENGTH * unit + 5), 0);
        assert_int_equal(smp_data_read(data, 0, 1, 0, tokens), SMP_OK);
        for (int i = 0; i < LENGTH; i++)
            assert_int_equal(tokens[i], bytes[i * unit]);
        assert_int_equal(smp_data_read(data, 1, 1, 0, tokens), SMP_ERR_FAILED);
        assert_non_null(strstr(smp_last_error(), path));
        assert_non_null(strstr(smp_last_error(), "has been truncated since"));
        smp_data_close(data);
    }
}

/* Samples go on from file to file, in the order given or in that of the names of a pattern; windows
 * do not. */
static void test_data_several_files(void **state)
{
    (void)state;
    model m;
    model_tokens(&m, 4, 256);
    char pattern[MAX_PATH + 300];
    static const char *const text[] = {"abcdefghijk", "ABCDEFGHIJKLM", "01234"};
    write_file("part-10.txt", text[1], 13);
    write_file("part-1.txt", text[0], 11);
    write_file("part-2.txt", text[2], 5);
    snprintf(pattern, sizeof pattern, "%s", path_of("part-*.tx?"));
    static const char *const expected = "abcdefghABCDEFGHIJKL0123"; /* '.' stands before '0' */
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        smp_data *data = NULL;
        int32_t tokens[24], targets[24];
        bool seen[6] = {false};
        assert_int_equal(open_sources(&m, 1, shuffle, &data, pattern, NULL), SMP_OK);
        assert_int_equal(smp_data_samples(data), 6);
        assert_int_equal(smp_data_read(data, 0, 6, 0, tokens), SMP_OK);
        assert_int_equal(smp_data_read(data, 0, 6, 1, targets), SMP_OK);
        for (int i = 0; i < 6; i++) {
            const char *at = strchr(expected, tokens[4 * i]);
            assert_non_null(at);
            const int sample = (int)(at - expected) / 4;
            assert_true((shuffle || sample == i) && !seen[sample]);
            seen[sample] = true;
            for (int k = 0; k < 4; k++) {
                assert_int_equal(tokens[4 * i + k], expected[4 * sample + k]);
                assert_int_equal(targets[4 * i + k], expected[4 * sample + k] + 1);
            }
        }
        smp_data_close(data);
    }
    smp_data *data = NULL;
    int32_t tokens[4];
    char path[MAX_PATH + 300];
    snprintf(path, sizeof path, "%s", path_of("part-2.txt"));
    assert_int_equal(open_sources(&m, 1, false, &data, path, pattern), SMP_OK);
    assert_int_equal(smp_data_samples(data), 7);
    assert_int_equal(smp_data_read(data, 7, 1, 0, tokens), SMP_OK);
    assert_int_equal(tokens[0], '0'); /* it comes first, and again in the next pass */
    smp_data_close(data);
    expect_error(&m, 1, path_of("part-*.bin"), NULL, "part-*.bin: the pattern matches no file");
    write_file("odd[1].txt", text[0], 11); /* a name is taken as it is */
    assert_int_equal(open_sources(&m, 1, false, &data, path_of("odd[1].txt"), NULL), SMP_OK);
    smp_data_close(data);
}

/* What is held out and what is left are all samples, each once, whatever the pass; the seed alone
 * decides. */
static void test_data_split(void **state)
{
    (void)state;
    model m;
    model_tokens(&m, 1, 256);
    unsigned char text[102];
    for (int i = 0; i < 102; i++)
        text[i] = (unsigned char)(i + 1);
    const char *path = write_file("split.txt", text, 102); /* 101 samples */
    int32_t held[2][30], got[2 * 71];
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        smp_data *data = NULL, *part = NULL;
        int count[256] = {0};
        assert_int_equal(open_sources(&m, 1, shuffle, &data, path, NULL), SMP_OK);
        assert_int_equal(smp_data_split(data, 0.3, &part), SMP_OK);
        assert_int_equal(smp_data_samples(part), 30);
        assert_int_equal(smp_data_samples(data), 71);
        assert_int_equal(smp_data_read(part, 0, 30, 0, held[shuffle]), SMP_OK);
        assert_int_equal(smp_data_read(data, 0, 142, 0, got), SMP_OK);
        for (int i = 0; i < 30; i++) {
            assert_true(i == 0 || held[shuffle][i] > held[shuffle][i - 1]);
            count[held[shuffle][i]] += 2;
        }
        for (int i = 0; i < 142; i++) {
            assert_true(shuffle || i % 71 == 0 || got[i] > got[i - 1]);
            count[got[i]]++;
        }
        for (int i = 1; i <= 101; i++)
            assert_int_equal(count[i], 2);
        smp_data_close(part);
        smp_data_close(data);
    }
    assert_memory_equal(held[0], held[1], sizeof held[0]);
    assert_true(held[0][29] > 31); /* not the first ones */
    static const double bad[] = {0.0, 1.0, -0.5, 0.001, 0.999, NAN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        smp_data *data = NULL, *part = NULL;
        assert_int_equal(open_sources(&m, 1, true, &data, path, NULL), SMP_OK);
        assert_int_equal(smp_data_split(data, bad[i], &part), SMP_ERR_INPUT);
        assert_non_null(strstr(smp_last_error(), "of 101 samples cannot be held out"));
        smp_data_close(data);
    }
    smp_data *data = NULL, *part = NULL; /* what is left must be a batch, too */
    assert_int_equal(open_sources(&m, 80, true, &data, path, NULL), SMP_OK);
    assert_int_equal(smp_data_split(data, 0.3, &part), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "got 71 samples, expected 80 or more"));
    smp_data_close(data);
}

/* uint32 tokens: by name, or by llm.c's header for them. */
static void test_data_wide_tokens(void **state)
{
    (void)state;
    model m;
    model_tokens(&m, 2, 200000);
    uint32_t file[256 + 5] = {20240801, 7, 5};
    const uint32_t token[5] = {1, 70000, 3, 199999, 5};
    memcpy(file + 256, token, sizeof token);
    char bare[MAX_PATH + 300], headed[MAX_PATH + 300];
    snprintf(bare, sizeof bare, "%s", write_file("t.u32.bin", token, sizeof token));
    snprintf(headed, sizeof headed, "%s", write_file("t.bin", file, sizeof file));
    for (int form = 0; form < 2; form++) {
        smp_data *data = NULL;
        int32_t tokens[4], targets[4];
        assert_int_equal(open_sources(&m, 1, false, &data, form ? headed : bare, NULL), SMP_OK);
        assert_int_equal(smp_data_samples(data), 2);
        assert_int_equal(smp_data_read(data, 0, 2, 0, tokens), SMP_OK);
        assert_int_equal(smp_data_read(data, 0, 2, 1, targets), SMP_OK);
        for (int i = 0; i < 4; i++)
            assert_true(tokens[i] == (int32_t)token[i] && targets[i] == (int32_t)token[i + 1]);
        smp_data_close(data);
    }
    file[1] = 1;
    expect_error(&m, 1, write_file("t.bin", file, sizeof file), NULL,
                 "got token file version 1, expected 7 (uint32 tokens)");
    file[1] = 7;
    expect_error(&m, 1, write_file("t.bin", file, sizeof file - 2), NULL, "promises 5 tokens");
    expect_error(&m, 1, write_file("t.u32.bin", token, 18), NULL, "a multiple of 4: uint32");
    model_tokens(&m, 2, INT32_MAX);
    const uint32_t beyond[3] = {0, 0, 0xffffffff};
    expect_error(&m, 1, write_file("t.u32.bin", beyond, sizeof beyond), NULL,
                 "token 2 (byte offset 8) is 4294967295");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_registry),
        cmocka_unit_test(test_data_array_of_no_kind),
        cmocka_unit_test(test_data_order_is_a_permutation),
        cmocka_unit_test(test_data_order_is_fair),
        cmocka_unit_test(test_data_order_of_huge_sets),
        cmocka_unit_test(test_data_text_windows),
        cmocka_unit_test(test_data_shuffled_passes),
        cmocka_unit_test(test_data_mark),
        cmocka_unit_test(test_data_seed_changes_order),
        cmocka_unit_test(test_data_bin),
        cmocka_unit_test(test_data_text_index_checks),
        cmocka_unit_test(test_data_unusable_files),
        cmocka_unit_test(test_data_sources_fit_the_model),
        cmocka_unit_test(test_data_closes_its_files),
        cmocka_unit_test(test_data_truncated_file),
        cmocka_unit_test(test_data_several_files),
        cmocka_unit_test(test_data_split),
        cmocka_unit_test(test_data_wide_tokens),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
