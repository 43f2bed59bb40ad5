/* Of several ways to compute something all ranks take the same: what one refuses, or lacks, or
 * finds to differ, nobody takes; choices that others do not have stand alone; no way left ends the
 * job on all. The kernels run until every rank has run what it takes. Run on four ranks. */
#include <mpi.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exec/job/agree_choices.h"
#include "exec/job/choose_device.h"
#include "exec/job/setup.h"
#include "exec/transport/mpi_lifetime.h"

static int rank;
static smp__choices choices;

static smp__choices *choices_of(void *context)
{
    (void)context;
    return &choices;
}

static const smp_device device = {.choices = choices_of};

static void open_job(smp *s)
{
    static smp_comm comm;
    static struct smp__found found;
    static struct smp__setup setup = {.found = &found};
    found = (struct smp__found){{0}};
    *s = (smp){.device = &device, .comm = &comm, .setup = &setup};
    assert_int_equal(smp__comm_open(s->comm, (smp_comm_limits){20, 600, 600}), SMP_OK);
}

static void close_job(smp *s)
{
    smp__comm_close(s->comm);
    smp__choices_free(&choices);
}

/* The kernels: what every choice has first that does not fail here, as calls do it. */
static uint32_t fails;  /* bit i: way i of every choice */
static uint32_t ran[8]; /* of choice k: bit i: way i has run here */
static int runs;

static smp_status run_kernels(smp *s)
{
    (void)s;
    runs++;
    for (int k = 0; k < choices.n; k++) {
        smp__choice *c = choices.choice[k];
        while (smp__choice_way(c) < c->ways && (fails >> smp__choice_way(c) & 1))
            smp__choice_refuse(c, smp__choice_way(c), "rank %d cannot", rank);
        ran[k] |= UINT32_C(1) << smp__choice_way(c);
    }
    return SMP_OK;
}

static smp_status agree(smp *s, uint32_t fails_here)
{
    fails = fails_here;
    memset(ran, 0, sizeof ran);
    runs = 0;
    return smp__agree_kernels(s, run_kernels);
}

static smp__choice *add(const char *about, int ways)
{
    smp__choice *c = NULL;
    bool is_new;
    assert_int_equal(smp__choice_find(&choices, about, &c, &is_new), SMP_OK);
    assert_true(is_new);
    c->ways = ways;
    return c;
}

static void test_what_one_rank_refuses_nobody_takes(void **state)
{
    (void)state;
    smp s;
    open_job(&s);
    /* in another order on each, and not on every rank, as stages have them */
    smp__choice *shared = rank % 2 ? add("shared", 3) : NULL;
    smp__choice *own = rank == 0 ? add("own", 2) : NULL;
    shared = shared ? shared : add("shared", 3);
    smp__choice *fewer = add("fewer", rank == 3 ? 1 : 2);
    if (rank == 2)
        smp__choice_refuse(shared, 0, "call %d failed", 7);
    if (rank == 3)
        smp__choice_refuse(shared, 1, "not this one");
    if (rank == 1)
        smp__choice_refuse(fewer, 1, "not needed");
    assert_int_equal(agree(&s, 0), SMP_OK);
    assert_int_equal(smp__choice_way(shared), 2);
    assert_int_equal(smp__choice_way(fewer), 0);
    if (own)
        assert_int_equal(smp__choice_way(own), 0);
    assert_string_equal(s.setup->found->device_note, "shared: call 7 failed");
    close_job(&s);
}

static void test_what_differs_on_one_rank_is_refused_on_all(void **state)
{
    (void)state;
    smp s;
    const float near = 0.5f, far = 3.0f, nan = NAN;
    open_job(&s);
    smp__choice *good = add("good", 2), *bad = add("bad", 2), *worse = add("worse", 2);
    good->differs = &near;
    bad->differs = rank == 1 ? &far : &near;
    worse->differs = rank == 3 ? &nan : NULL;
    assert_int_equal(agree(&s, 0), SMP_OK);
    assert_int_equal(smp__choice_way(good), 0);
    assert_int_equal(smp__choice_way(bad), 1);
    assert_int_equal(smp__choice_way(worse), 1);
    assert_string_equal(s.setup->found->device_note,
                        "bad: its results are 3 times what is allowed from ours");
    close_job(&s);
}

static void test_no_way_left_ends_the_job_on_all(void **state)
{
    (void)state;
    smp s;
    open_job(&s);
    smp__choice *c = rank < 3 ? add("product", 2) : NULL;
    if (rank == 0)
        smp__choice_refuse(c, 0, "first");
    if (rank == 1)
        smp__choice_refuse(c, 1, "second");
    assert_int_equal(agree(&s, 0), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "product: none of 2 ways to compute it is left"));
    close_job(&s);
}

static void test_every_rank_has_run_what_it_takes(void **state)
{
    (void)state;
    smp s;
    static const uint32_t ways[] = {1 << 2, 0, 1 << 0, 1 << 1}; /* which fail, by rank */
    open_job(&s);
    smp__choice *first = add("first", 4), *second = rank == 1 ? add("second", 4) : NULL;
    assert_int_equal(agree(&s, ways[rank]), SMP_OK);
    assert_int_equal(runs, 4); /* a way more is struck out in each of the first three */
    assert_int_equal(smp__choice_way(first), 3);
    assert_true(ran[0] >> 3 & 1);
    if (second)
        assert_int_equal(ran[1], 1);
    assert_string_equal(s.setup->found->device_note, "first: rank 2 cannot");
    close_job(&s);
}

static void test_kernels_run_once_where_nothing_is_refused_or_all_refuse_alike(void **state)
{
    (void)state;
    smp s;
    for (uint32_t alike = 0; alike < 2; alike++) {
        open_job(&s);
        smp__choice *c = add("alike", 2);
        assert_int_equal(agree(&s, alike), SMP_OK);
        assert_int_equal(runs, 1);
        assert_int_equal(smp__choice_way(c), alike);
        close_job(&s);
    }
}

/* What differs is known behind the run in which it was taken. */
static void test_what_stands_in_for_what_differs_is_run(void **state)
{
    (void)state;
    smp s;
    const float far = 3.0f;
    open_job(&s);
    smp__choice *c = add("differs", 2);
    c->differs = &far;
    assert_int_equal(agree(&s, 0), SMP_OK);
    assert_int_equal(runs, 2);
    assert_int_equal(ran[0], 1 << 0 | 1 << 1);
    close_job(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_one_rank_refuses_nobody_takes),
        cmocka_unit_test(test_what_differs_on_one_rank_is_refused_on_all),
        cmocka_unit_test(test_no_way_left_ends_the_job_on_all),
        cmocka_unit_test(test_every_rank_has_run_what_it_takes),
        cmocka_unit_test(test_kernels_run_once_where_nothing_is_refused_or_all_refuse_alike),
        cmocka_unit_test(test_what_stands_in_for_what_differs_is_run),
    };
    setenv("CMOCKA_TEST_ABORT", "1",
           1); /* else the other ranks would wait for the one that failed */
    if (smp__mpi_open() != SMP_OK)
        return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    if (failures > 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
