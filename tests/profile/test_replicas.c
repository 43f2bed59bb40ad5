/* Replicas that count: by hand, and at random against all pairs of ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "profile/replicas.h"

enum { N_DEVICE = 12, MAX_DDP = 6 };

typedef struct setting {
    smp_device_spec device[N_DEVICE];
    smp_cluster cluster;
} setting;

/* Nodes of three equal devices, links between them slower. */
static void set(setting *s)
{
    *s = (setting){.cluster = {.name = "test",
                               .nodes = 4,
                               .devices_per_node = 3,
                               .device = s->device,
                               .intra_node = {.latency_us = 1, .bytes_per_s = 1e9},
                               .inter_node = {.latency_us = 5, .bytes_per_s = 1e8}}};
    for (int d = 0; d < N_DEVICE; d++)
        s->device[d] = (smp_device_spec){.name = "device", .flops_fp32 = 1e12};
}

static void expect(const setting *s, int pipeline, int ddp, const int *device, int n,
                   const int *expected)
{
    int kept[MAX_DDP], n_kept;
    assert_int_equal(smp_replicas_that_count(&s->cluster, SMP_PRECISION_FP32, pipeline, ddp, device,
                                             kept, &n_kept),
                     SMP_OK);
    assert_int_equal(n_kept, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(kept[i], expected[i]);
}

static void test_replicas_by_hand(void **state)
{
    (void)state;
    static const int in_order[N_DEVICE] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    setting s;
    set(&s);
    expect(&s, 3, 4, in_order, 1, (const int[]){0});       /* each on its node */
    expect(&s, 2, 6, in_order, 1, (const int[]){1});       /* 2 and 3 lie on two nodes */
    expect(&s, 4, 3, in_order, 3, (const int[]){0, 1, 2}); /* cut behind 3, behind 2, behind 1 */
    s.device[10].flops_fp32 = 0.5e12;
    expect(&s, 3, 4, in_order, 1, (const int[]){3});
    expect(&s, 2, 6, in_order, 2, (const int[]){1, 5});
    set(&s);
    s.cluster.inter_node.latency_us = 0; /* small messages are faster there, large ones slower */
    expect(&s, 2, 6, in_order, 2, (const int[]){0, 1});
}

static bool slower(const setting *s, const int *a, const int *b, int pipeline)
{
    for (int r = 0; r < pipeline; r++) {
        if (s->device[a[r]].flops_fp32 > s->device[b[r]].flops_fp32)
            return false;
        for (int q = 0; q < r; q++)
            if (smp_link_us(smp_cluster_link(&s->cluster, a[r], a[q]), 100) <
                smp_link_us(smp_cluster_link(&s->cluster, b[r], b[q]), 100))
                return false;
    }
    return true;
}

/* Of every replica one is kept that is as slow or slower, and no two of those kept compare. */
static void test_replicas_cover_all(void **state)
{
    (void)state;
    int several = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        setting s;
        set(&s);
        uint64_t random = seed << 32;
        int device[MAX_DDP * 4], kept[MAX_DDP], n_kept, pipeline = 1 + (int)(seed % 4);
        for (int d = 1; d < N_DEVICE; d++)
            s.device[d].flops_fp32 = 1e12 / (double)(1 + smp_random_mix(++random) % 2);
        for (int i = 0; i < MAX_DDP * pipeline; i++)
            device[i] = (int)(smp_random_mix(++random) % N_DEVICE);
        assert_int_equal(smp_replicas_that_count(&s.cluster, SMP_PRECISION_FP32, pipeline, MAX_DDP,
                                                 device, kept, &n_kept),
                         SMP_OK);
        for (int d = 0; d < MAX_DDP; d++) {
            bool covered = false;
            for (int i = 0; i < n_kept; i++)
                covered |= slower(&s, &device[kept[i] * pipeline], &device[d * pipeline], pipeline);
            assert_true(covered);
        }
        for (int i = 0; i < n_kept * n_kept; i++)
            if (i / n_kept != i % n_kept)
                assert_false(slower(&s, &device[kept[i / n_kept] * pipeline],
                                    &device[kept[i % n_kept] * pipeline], pipeline));
        several += n_kept > 1;
    }
    assert_true(several > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replicas_by_hand),
        cmocka_unit_test(test_replicas_cover_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
