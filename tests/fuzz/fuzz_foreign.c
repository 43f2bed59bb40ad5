/* The readers of other frameworks' schedules, and what is proven of those that are taken: it ends
 * or there is a finding, and times add up. */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "schedule/foreign/foreign_judge.h"

enum { MOST_ACTIONS = 20000 };

static void judge(const smp_foreign *foreign)
{
    smp_foreign_verdict verdict;
    int64_t n = (int64_t)foreign->n_stage * foreign->microbatches;
    smp_text text = {0}, json = {0};
    for (int r = 0; r < foreign->n_rank; r++)
        n += foreign->rank[r].n;
    if (n > MOST_ACTIONS || !fuzz_taken(smp_foreign_prove(foreign, NULL, &verdict)))
        return;
    FUZZ_REQUIRE(verdict.legal == (verdict.findings.n == 0));
    for (int r = 0; verdict.legal && r < foreign->n_rank; r++) {
        const smp_foreign_load *load = &verdict.run.rank[r];
        FUZZ_REQUIRE(fabs(load->busy_us + load->idle_us - verdict.run.step_us) <=
                     1e-6 * (1 + verdict.run.step_us));
        FUZZ_REQUIRE(load->live >= 0);
    }
    FUZZ_REQUIRE(smp_foreign_report(&verdict, &text) == SMP_OK);
    FUZZ_REQUIRE(smp_foreign_report_json(&verdict, &json) == SMP_OK);
    smp_text_free(&text);
    smp_text_free(&json);
    smp_foreign_verdict_free(&verdict);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_foreign *foreign = NULL;
    char *text = calloc(size + 1, 1);
    FUZZ_REQUIRE(text);
    memcpy(text, data, size);
    if (fuzz_taken(smp_foreign_parse("s.csv", text, 0, 4, &foreign))) {
        judge(foreign);
        smp_foreign_destroy(foreign);
    }
    free(text);
    return 0;
}
