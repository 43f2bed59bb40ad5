/* Which ranks stand for the links inside nodes and between them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exec/probe/probe_link.h"

static void test_probe_link_pairs(void **state)
{
    static const struct {
        int ranks, node_of[6];
        smp__probe_pair intra, inter;
    } cases[] = {
        {1, {0}, {-1, -1}, {-1, -1}},
        {2, {0, 0}, {0, 1}, {-1, -1}},
        {2, {0, 1}, {-1, -1}, {0, 1}},
        {4, {0, 0, 2, 2}, {0, 1}, {0, 2}},
        {4, {0, 1, 0, 1}, {0, 2}, {0, 1}},
        {4, {0, 1, 1, 1}, {1, 2}, {0, 1}},
        {6, {0, 1, 2, 3, 4, 2}, {2, 5}, {0, 1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp__probe_pair pair[SMP_LINK_KINDS];
        smp__probe_pairs(cases[i].node_of, cases[i].ranks, pair);
        const smp__probe_pair *intra = &pair[SMP_LINK_INTRA_NODE];
        const smp__probe_pair *inter = &pair[SMP_LINK_INTER_NODE];
        if (intra->first != cases[i].intra.first || intra->second != cases[i].intra.second ||
            inter->first != cases[i].inter.first || inter->second != cases[i].inter.second)
            fail_msg("case %zu: intra %d %d, inter %d %d", i, intra->first, intra->second,
                     inter->first, inter->second);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_probe_link_pairs)};
    return cmocka_run_group_tests_name("probe_link", tests, NULL, NULL);
}
