/* The directory of checkpoints and the headers in it: which names count, in which order, what is
 * kept. The files here are headers alone. One rank. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "tests/bad_calls.h"
#include "tests/exec/checkpoint_fixture.h"

#include "exec/checkpoint/checkpoint_file.h"
#include "exec/checkpoint/checkpoint_folder.h"

static int reset(void **state)
{
    memset(&bad_rule, 0, sizeof bad_rule);
    const int result = set_up(state);
    return result == 0 ? mkdir(saved, 0777) : result;
}

static const char *in_saved(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", saved, name);
    return path;
}

static void put_header(int64_t step, const char *text)
{
    write_text(file_of(step), "");
    set_header(file_of(step), text, true);
}

static void put_saved(int64_t step, int64_t number)
{
    char text[256];
    snprintf(text, sizeof text,
             "SMP checkpoint 3\nfingerprint 0\nstep %" PRId64 "\nsamples 0\nsaved %" PRId64
             "\noptimizer sgd\nstates 1\nmodel m\n",
             step, number);
    put_header(step, text);
}

static void put_version_1(int64_t step)
{
    char text[256];
    snprintf(text, sizeof text,
             "SMP checkpoint 1\nmodel m\nfingerprint 0\nstep %" PRId64
             "\noptimizer sgd\nstates 1\n",
             step);
    put_header(step, text);
}

static void expect_list(const char *expected)
{
    smp__saved *list = NULL;
    int n = -1;
    char got[256] = "";
    must(smp__checkpoint_list(saved, &list, &n));
    for (int i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%" PRId64 " ", list[i].step);
    free(list);
    assert_string_equal(got, expected);
}

/* What cannot be read, by falling step; by falling number; version 1, by falling step. */
static void test_checkpoint_order(void **state)
{
    (void)state;
    int64_t next = 0;
    expect_list("");
    must(smp__checkpoint_next(saved, &next));
    assert_int_equal(next, 1);
    put_version_1(30);
    put_version_1(20);
    put_version_1(40);
    must(smp__checkpoint_next(saved, &next));
    assert_int_equal(next, 1);
    put_saved(1, 7);
    put_saved(2, 5);
    put_saved(3, 6);
    put_saved(4, 6);
    must(smp__checkpoint_next(saved, &next));
    assert_int_equal(next, 8);
    put_header(8, "SMP checkpoint 8\nlater\n");
    put_header(9, "none");
    must(smp__checkpoint_next(saved, &next));
    assert_int_equal(next, 8);
    expect_list("9 8 1 4 3 2 40 30 20 ");
    assert_int_equal(smp__checkpoint_list("/no/such", NULL, NULL), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "/no/such: cannot read the checkpoint directory: No"));
    assert_int_equal(smp__checkpoint_next("/no/such", &next), SMP_ERR_INPUT);
}

/* Two that can be read are kept, and all that cannot. */
static void test_checkpoint_pruned(void **state)
{
    (void)state;
    put_header(8, "SMP checkpoint 8\nlater\n");
    put_header(9, "none");
    put_version_1(7);
    put_saved(1, 1);
    must(smp__checkpoint_prune(saved, 2));
    expect_list("9 8 1 7 ");
    put_saved(2, 2);
    put_saved(3, 3);
    must(smp__checkpoint_prune(saved, 2));
    expect_list("9 8 3 2 ");
    put_saved(4, 4);
    bad_rule.call = BAD_UNLINK;
    bad_rule.end = "2.smp";
    bad_rule.error = EPERM;
    assert_int_equal(smp__checkpoint_prune(saved, 2), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "2.smp: cannot remove: Operation not permitted"));
    bad_rule.call = BAD_NONE;
    expect_list("9 8 4 3 2 ");
    must(smp__checkpoint_prune(saved, 3)); /* as many as are asked for */
    expect_list("9 8 4 3 2 ");
    must(smp__checkpoint_prune(saved, 1));
    expect_list("9 8 4 ");
    assert_int_equal(smp__checkpoint_prune("/no/such", 2), SMP_ERR_INPUT);
}

static void put_evaluated(int64_t step, int64_t number, const char *loss)
{
    char text[256];
    snprintf(text, sizeof text,
             "SMP checkpoint 4\nfingerprint 0\nstep %" PRId64 "\nsamples 0\nsaved %" PRId64
             "\norder 1 seed 1 held-out 0 shuffled 1 drop-last 0\nevaluated %s\noptimizer sgd\n"
             "states 1\nmodel m\n",
             step, number, loss);
    put_header(step, text);
}

/* ... and the one with the lowest loss, of equals the first; a loss that is none is damage. */
static void test_checkpoint_best_kept(void **state)
{
    (void)state;
    put_evaluated(1, 1, "2.5");
    put_evaluated(2, 2, "-0.25");
    put_evaluated(3, 3, "-0.25");
    put_saved(4, 4);
    put_evaluated(5, 5, "3e300");
    put_saved(6, 6);
    must(smp__checkpoint_prune(saved, 2));
    expect_list("6 5 2 ");
    put_evaluated(7, 7, "-0.2500000000000001");
    put_evaluated(8, 8, "nan");
    put_evaluated(9, 9, "inf");
    put_evaluated(10, 10, "good");
    put_saved(11, 11);
    put_saved(12, 12);
    must(smp__checkpoint_prune(saved, 2));
    expect_list("10 9 8 12 11 7 ");
}

/* Jobs that died while they saved leave their parts, as long as a checkpoint: the next one that is
 * complete removes them, and nothing else. */
static void test_checkpoint_parts_removed(void **state)
{
    (void)state;
    static const char *const names[] = {
        "checkpoint-0000000002.smp.part", "checkpoint-0000000003.smp.part", "notes.part",
        "checkpoint-2.smp.part", "checkpoint-0000000003.smp.part.part"};
    const size_t n = sizeof names / sizeof names[0];
    put_saved(2, 1);
    for (size_t i = 0; i < n; i++)
        write_text(in_saved(names[i]), "");
    must(smp__checkpoint_prune(saved, 2));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(access(in_saved(names[i]), F_OK), i < 2 ? -1 : 0);
    for (size_t i = 2; i < n; i++)
        assert_int_equal(unlink(in_saved(names[i])), 0);
    expect_list("2 ");
    write_text(in_saved(names[1]), "");
    bad_rule.call = BAD_UNLINK;
    bad_rule.end = "3.smp.part";
    bad_rule.error = EPERM;
    assert_int_equal(smp__checkpoint_prune(saved, 2), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "3.smp.part: cannot remove: Operation not permitted"));
    bad_rule.call = BAD_NONE;
    assert_int_equal(unlink(in_saved(names[1])), 0);
}

/* No memory for the second of two names. */
static void test_checkpoint_list_no_memory(void **state)
{
    (void)state;
#ifdef BAD_ALLOCATIONS
    smp__saved *list = NULL;
    int n = -1;
    put_saved(1, 1);
    put_saved(2, 2);
    refused_bytes = 2 * sizeof(*list);
    assert_int_equal(smp__checkpoint_list(saved, &list, &n), SMP_ERR_NO_MEMORY);
    refused_bytes = 0;
    assert_true(!list && n == -1);
    expect_list("2 1 ");
#else
    skip();
#endif
}

static void test_checkpoint_names(void **state)
{
    (void)state;
    static const char *const others[] = {
        "checkpoint-0000000003.smp.part", "checkpoint-0000000003.sm",  "checkpoint-3.smp",
        "checkpoint-00000000003.smp",     "checkpoint-.smp",           "checkpoint--000000003.smp",
        "checkpoint-000000000x.smp",      "xcheckpoint-0000000003.smp"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        write_text(in_saved(others[i]), "");
    assert_false(smp__checkpoint_exists(saved));
    assert_false(smp__checkpoint_exists("/no/such"));
    expect_list("");
    put_saved(0, 1);
    put_saved(99, 2);
    assert_true(smp__checkpoint_exists(saved));
    expect_list("99 0 ");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_int_equal(unlink(in_saved(others[i])), 0);
}

/* A directory is made once, and safe then; one that is there is not looked at again. */
static void test_checkpoint_made(void **state)
{
    (void)state;
    char inner[192];
    snprintf(inner, sizeof inner, "%s/inner", saved);
    bad_rule.call = BAD_FSYNC;
    bad_rule.end = "/saved";
    bad_rule.error = EIO;
    must(smp__checkpoint_folder_make(saved));
    assert_int_equal(smp__checkpoint_folder_make(inner), SMP_ERR_FAILED);
    assert_int_equal(access(inner, F_OK), -1);
    bad_rule.call = BAD_NONE;
    struct stat made;
    mode_t mask = umask(0);
    must(smp__checkpoint_folder_make(inner));
    umask(mask);
    assert_int_equal(stat(inner, &made), 0);
    assert_int_equal(made.st_mode & 07777, 0777); /* the mask alone decides */
    must(smp__checkpoint_folder_sync(inner));
    assert_int_equal(rmdir(inner), 0);
    assert_int_equal(smp__checkpoint_folder_sync(inner), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "inner: cannot open to sync: No such file"));
    assert_int_equal(smp__checkpoint_folder_make("/no/such/inner"), SMP_ERR_INPUT);
}

/* Numbers of saves end where a double counts by ones; what is beyond is damage. */
static void test_checkpoint_last_number(void **state)
{
    (void)state;
    const int64_t most = INT64_C(1) << 53;
    int64_t next = 0;
    put_saved(1, most);
    must(smp__checkpoint_next(saved, &next));
    assert_int_equal(next, most + 1);
    put_saved(2, most + 1);
    must(smp__checkpoint_next(saved, &next));
    assert_int_equal(next, most + 1);
    expect_list("2 1 ");
}

static int free_descriptor(void)
{
    int fd = open("/dev/null", O_RDONLY);
    assert_true(fd >= 0 && close(fd) == 0);
    return fd;
}

static void test_checkpoint_descriptors_closed(void **state)
{
    (void)state;
    int before = free_descriptor();
    int64_t next;
    put_saved(1, 1);
    expect_list("1 ");
    must(smp__checkpoint_next(saved, &next));
    must(smp__checkpoint_prune(saved, 2));
    must(smp__checkpoint_folder_sync(saved));
    assert_true(smp__checkpoint_exists(saved));
    assert_int_equal(free_descriptor(), before);
}

static smp_status read_header(const char *text, bool hashed, smp__checkpoint_header *header)
{
    write_text(file_of(5), "");
    set_header(file_of(5), text, hashed);
    int fd = open(file_of(5), O_RDONLY);
    smp_status status = smp__checkpoint_header_read(fd, "file", header);
    close(fd);
    return status;
}

/* Each line of a header, and what may not stand in it. */
static void test_checkpoint_headers(void **state)
{
    (void)state;
    static const char good[] =
        "SMP checkpoint 3\nfingerprint 00000000000000ab\nstep 5\nsamples -1\n"
        "saved 3\noptimizer adamw\nstates 2\nmodel tiny\n";
    static const char *const bad[][2] = {
        {"SMP", "smp"},         {"3\n", "3 \n"},      {"checkpoint 3", "checkpoint x"},
        {"finger", "f"},        {"step", "steps"},    {"step 5", "step -5"},
        {"samples", "sample"},  {"samples -1\n", ""}, {"saved 3", "saved -3"},
        {"saved", "Saved"},     {"optimizer", "opt"}, {"states 2", "states -2"},
        {"states 2", "states"},
    };
    smp__checkpoint_header header;
    must(read_header(good, true, &header));
    assert_true(header.version == 3 && header.fingerprint == 0xab && header.step == 5 &&
                header.samples == -1 && header.saved == 3 && header.states == 2);
    assert_string_equal(header.optimizer, "adamw");
    const smp__checkpoint_header before = header;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[512];
        const char *at = strstr(good, bad[i][0]);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, bad[i][1],
                 at + strlen(bad[i][0]));
        if (read_header(text, true, &header) != SMP_ERR_INPUT)
            fail_msg("'%s' was read", text);
        assert_string_equal(smp_last_error(), "file: the header is damaged");
        assert_memory_equal(&header, &before, sizeof header);
    }
    assert_int_equal(read_header(good, false, &header), SMP_ERR_INPUT);
}

/* The order of the samples, which version 3 did not have. */
static void test_checkpoint_sample_order(void **state)
{
    (void)state;
    static const char form[] = "SMP checkpoint %d\nfingerprint ab\nstep 5\nsamples 7\nsaved 3\n"
                               "%soptimizer adamw\nstates 2\nmodel tiny\n";
    static const char *const bad[] = {
        "",
        "order 1 seed 9 held-out 100000000 shuffled 1\n",
        "order 2 seed 9 held-out 100000000 shuffled 1 drop-last 0\n",
        "order 1 seed 9 held-out 1000000000 shuffled 1 drop-last 0\n",
        "order 1 seed 9 held-out -1 shuffled 1 drop-last 0\n",
        "order 1 seed 9 held-out 0 shuffled -1 drop-last 0\n",
        "order 1 seed x held-out 0 shuffled 1 drop-last 0\n",
    };
    smp__checkpoint_header header;
    char text[512];
    snprintf(text, sizeof text, form, 4,
             "order 1 seed 9 held-out 100000000 shuffled 0 drop-last 1\n");
    must(read_header(text, true, &header));
    assert_true(header.order.known && header.order.seed == 9 && !header.order.shuffle &&
                header.order.held_out == 100000000 && header.order.drop_last && header.saved == 3 &&
                header.states == 2);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, form, 4, bad[i]);
        if (read_header(text, true, &header) != SMP_ERR_INPUT)
            fail_msg("'%s' was read", bad[i]);
    }
    snprintf(text, sizeof text, form, 3, "");
    must(read_header(text, true, &header));
    assert_true(!header.order.known && header.saved == 3);
}

/* The loss scale, which need not be there, and before version 5 was not. */
static void test_checkpoint_loss_scale(void **state)
{
    (void)state;
    static const char form[] = "SMP checkpoint %d\nfingerprint ab\nstep 5\nsamples 7\nsaved 3\n"
                               "order 0 seed 0 held-out 0 shuffled 0 drop-last 0\n"
                               "%soptimizer adamw\nstates 2\nmodel tiny\n";
    static const char good[] = "evaluated 0.5\nloss-scale 0.333333343 good 12 left 2\n";
    static const char *const bad[] = {
        "loss-scale 0 good 12 left 2\n",  "loss-scale nan good 12 left 2\n",
        "loss-scale 8 good -1 left 2\n",  "loss-scale 8 good 12 left 0\n",
        "loss-scale 8 good 12\n",         "loss-scale 8 good 12 left 2\nevaluated 0.5\n",
        "loss-scale inf good 1 left 2\n",
    };
    smp__checkpoint_header header;
    char text[512];
    snprintf(text, sizeof text, form, 5, good);
    must(read_header(text, true, &header));
    assert_true(header.scaled && header.loss_scale.scale == 1.0f / 3.0f && header.evaluated &&
                header.loss_scale.good == 12 && header.loss_scale.left == 2 && header.states == 2);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, form, 5, bad[i]);
        if (read_header(text, true, &header) != SMP_ERR_INPUT)
            fail_msg("'%s' was read", bad[i]);
    }
    snprintf(text, sizeof text, form, 4, good);
    assert_int_equal(read_header(text, true, &header), SMP_ERR_INPUT);
    for (int version = 4; version <= 5; version++) {
        snprintf(text, sizeof text, form, version, "");
        must(read_header(text, true, &header));
        assert_true(!header.scaled && header.saved == 3);
    }
}

/* The receipt of the run, which before version 6 was not. */
static void test_checkpoint_receipt(void **state)
{
    (void)state;
    static const char form[] = "SMP checkpoint %d\nfingerprint ab\nstep 5\nsamples 7\nsaved 3\n"
                               "order 0 seed 0 held-out 0 shuffled 0 drop-last 0\n"
                               "%soptimizer adamw\nstates 2\nmodel tiny\n";
    static const char *const bad[] = {
        "receipt\n",
        "receipt -1\nbatch 4\n",
        "receipt 7\nbatch 4\n",
        "receipt 9\nbatch 4\n",
        "receipt 4000\nbatch 4\n",
        "receipt 99999999999999999999\nbatch 4\n",
        "receipt 8 batch 4\n",
    };
    smp__checkpoint_header header;
    char text[512];
    snprintf(text, sizeof text, form, 6, "receipt 8\nbatch 4\n");
    must(read_header(text, true, &header));
    assert_string_equal(header.receipt, "batch 4\n");
    assert_true(header.states == 2 && header.saved == 3);
    snprintf(text, sizeof text, form, 6, "");
    must(read_header(text, true, &header));
    assert_string_equal(header.receipt, "");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, form, 6, bad[i]);
        if (read_header(text, true, &header) != SMP_ERR_INPUT)
            fail_msg("'%s' was read", bad[i]);
    }
}

/* That a number is kept for each weight, which need not be said, and before version 6 was not. */
static void test_checkpoint_kept_line(void **state)
{
    (void)state;
    static const char form[] = "SMP checkpoint %d\nfingerprint ab\nstep 5\nsamples 7\nsaved 3\n"
                               "order 0 seed 0 held-out 0 shuffled 0 drop-last 0\n"
                               "optimizer novograd\nstates 1\n%smodel tiny\n";
    smp__checkpoint_header header;
    char text[512];
    for (int version = 5; version <= 6; version++)
        for (int kept = 0; kept <= 1; kept++) {
            snprintf(text, sizeof text, form, version, kept ? "kept 1\n" : "");
            must(read_header(text, true, &header));
            assert_int_equal(header.keeps, kept && version == 6);
        }
    snprintf(text, sizeof text, form, 6, "kept 2\n");
    assert_int_equal(read_header(text, true, &header), SMP_ERR_INPUT);
}

static void test_checkpoint_other_versions(void **state)
{
    (void)state;
    smp__checkpoint_header header;
    must(read_header("SMP checkpoint 8\n", true, &header));
    assert_int_equal(header.version, 8);
    assert_int_equal(read_header("SMP checkpoint 8\n", false, &header), SMP_ERR_INPUT);
    must(read_header("SMP checkpoint 1\nmodel m\nfingerprint ab\nstep 5\noptimizer sgd\nstates 1\n",
                     false, &header));
    assert_true(header.version == 1 && header.saved == 0);
    must(read_header("SMP checkpoint 2\n", true, &header));
    assert_int_equal(header.version, 2);
}

static void test_checkpoint_unreadable(void **state)
{
    (void)state;
    smp__checkpoint_header header;
    put_saved(5, 1);
    assert_int_equal(truncate(file_of(5), HEADER - 1), 0);
    int fd = open(file_of(5), O_RDONLY), ends[2];
    assert_int_equal(smp__checkpoint_header_read(fd, "file", &header), SMP_ERR_INPUT);
    close(fd);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(smp__checkpoint_header_read(ends[0], "file", &header), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "file: cannot read: Illegal seek"));
    close(ends[0]);
    close(ends[1]);
}

/* More than there is. */
static void test_checkpoint_ends_early(void **state)
{
    (void)state;
    char bytes[8];
    write_text(file_of(1), "1234");
    int fd = open(file_of(1), O_RDONLY);
    must(smp__checkpoint_transfer(fd, bytes, 4, 0, false, "file"));
    assert_int_equal(smp__checkpoint_transfer(fd, bytes, 5, 0, false, "file"), SMP_ERR_FAILED);
    assert_string_equal(smp_last_error(), "file: cannot read: the file ends early");
    assert_int_equal(smp__checkpoint_transfer(fd, bytes, 4, 0, true, "file"), SMP_ERR_FAILED);
    assert_string_equal(smp_last_error(), "file: cannot write: Bad file descriptor");
    must(smp__checkpoint_transfer(fd, bytes, 0, 9, false, "file"));
    close(fd);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_checkpoint_##name, reset, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(order),         TEST(pruned),         TEST(best_kept),
        TEST(parts_removed), TEST(last_number),    TEST(descriptors_closed),
        TEST(names),         TEST(made),           TEST(headers),
        TEST(sample_order),  TEST(loss_scale),     TEST(receipt),
        TEST(kept_line),     TEST(other_versions), TEST(unreadable),
        TEST(ends_early),    TEST(list_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
