/* torch-csv: torch.distributed.pipelining's schedules (schedules.py: _Action.from_str, _load_csv,
 * _dump_csv), a row per rank, a cell per action: stage, action, micro-batch. All dialects:
 *
 *   compute only          0F0,0F1,,0B0          an empty cell waits for nothing
 *   halves of backwards   0I0,0W0
 *   of older versions     0B0,0W0 and 0BW0      where W stands beside B, B is the input's half and
 *                                               BW the whole
 *   with communication    0SEND_F0,1RECV_F0,... and WAIT_SEND_F, UNSHARD, RESHARD, REDUCE_GRAD
 *   at the same time      (0F7;7B3)OVERLAP_F_B  run one after the other, as PyTorch does by itself
 *
 * Linear in the text. */
#include <ctype.h>
#include <string.h>

#include "schedule/foreign/foreign_readers.h"

enum { MAX_NUMBER = 1 << 24, BW = SMP_N_FOREIGN };

typedef struct reader {
    smp_foreign *foreign;
    const char *at, *line; /* where it reads, and where the line begins */
    int row, cell;
    bool has_bw, has_input; /* seen so far */
    bool has_w;
} reader;

static const char *const names[] = {
#define NAME(id, name) name,
    SMP_FOREIGN_ACTION_LIST(NAME)
#undef NAME
        "BW"};

static smp_where where(const reader *r)
{
    return (smp_where){r->foreign->file, r->row + 1, (int)(r->at - r->line) + 1};
}

static smp_status fail(const reader *r)
{
    int n = 0; /* a name, of whatever kind the file is */
    while (n < 12 && (isalnum((unsigned char)r->at[n]) || r->at[n] == '_'))
        n++;
    return smp_fail_at(where(r),
                       "got '%.*s', expected an action such as 2F0: stage, F, B, I, W or what "
                       "PyTorch calls communication, micro-batch",
                       n, r->at);
}

static smp_status read_number(reader *r, int32_t *out)
{
    int64_t value = 0;
    if (!isdigit((unsigned char)*r->at))
        return fail(r);
    for (; isdigit((unsigned char)*r->at); r->at++) {
        value = 10 * value + (*r->at - '0');
        if (value > MAX_NUMBER)
            return smp_fail_at(where(r), "got a number above %d", (int)MAX_NUMBER);
    }
    *out = (int32_t)value;
    return SMP_OK;
}

/* The longest name that stands there. */
static int find_kind(const char *at)
{
    int best = -1;
    size_t length = 0;
    for (int k = 0; k <= BW; k++) {
        size_t n = strlen(names[k]);
        if (n > length && strncmp(at, names[k], n) == 0) {
            best = k;
            length = n;
        }
    }
    return best;
}

static smp_status read_action(reader *r)
{
    smp_foreign_action action = {.microbatch = -1, .cell = r->cell};
    const reader begin = *r;
    SMP_TRY(read_number(r, &action.stage));
    int kind = find_kind(r->at);
    if (kind < 0)
        return fail(&begin);
    r->at += strlen(names[kind]);
    r->has_bw |= kind == BW;
    r->has_input |= kind == SMP_FOREIGN_I;
    r->has_w |= kind == SMP_FOREIGN_W;
    const bool of_microbatch = kind == BW || kind < SMP_FOREIGN_PER_MICROBATCH;
    if (of_microbatch)
        SMP_TRY(read_number(r, &action.microbatch));
    if (action.stage >= SMP_FOREIGN_MAX_STAGES)
        return smp_fail_at(where(&begin), "got stage %d, expected less than %d", (int)action.stage,
                           (int)SMP_FOREIGN_MAX_STAGES);
    /* Which B is meant is known at the end: see name_backwards. */
    action.kind = (smp_foreign_kind)kind;
    return smp__foreign_push(&r->foreign->rank[r->row], action);
}

/* "(0F7;7B3)OVERLAP_F_B" */
static smp_status read_overlap(reader *r)
{
    static const char name[] = "OVERLAP_F_B";
    r->at++;
    for (;;) {
        r->at += strspn(r->at, " \t");
        SMP_TRY(read_action(r));
        r->at += strspn(r->at, " \t");
        if (*r->at != ';')
            break;
        r->at++;
    }
    if (*r->at != ')' || strncmp(r->at + 1, name, sizeof name - 1) != 0)
        return smp_fail_at(where(r), "expected ')%s'", name);
    r->at += sizeof name;
    r->foreign->n_overlap++;
    return SMP_OK;
}

static smp_status read_cell(reader *r)
{
    r->at += strspn(r->at, " \t\"");
    if (*r->at == '(')
        SMP_TRY(read_overlap(r));
    else if (isdigit((unsigned char)*r->at))
        SMP_TRY(read_action(r));
    r->at += strspn(r->at, " \t\"\r");
    return *r->at == ',' || *r->at == '\n' || !*r->at ? SMP_OK : fail(r);
}

/* In files that write BW, or W without any I, B is the half for the input. */
static void name_backwards(const reader *r)
{
    const bool old = r->has_bw || (r->has_w && !r->has_input);
    for (int k = 0; k < r->foreign->n_rank; k++) {
        smp_foreign_rank *rank = &r->foreign->rank[k];
        for (int32_t i = 0; i < rank->n; i++) {
            if (rank->action[i].kind == SMP_FOREIGN_B && old)
                rank->action[i].kind = SMP_FOREIGN_I;
            else if ((int)rank->action[i].kind == BW)
                rank->action[i].kind = SMP_FOREIGN_B;
        }
    }
}

static int count_rows(const char *text)
{
    int rows = 0;
    for (const char *c = text; *c; c = strchr(c, '\n') ? strchr(c, '\n') + 1 : "")
        rows++;
    return rows;
}

static smp_status read(smp_foreign *foreign, const char *text, int ranks, int microbatches)
{
    reader r = {.foreign = foreign, .at = text, .line = text};
    (void)ranks;
    (void)microbatches;
    foreign->n_rank = count_rows(text);
    foreign->rank = SMP_ARENA_NEW(foreign->arena, smp_foreign_rank, (size_t)foreign->n_rank);
    if (!foreign->rank)
        return SMP_ERR_NO_MEMORY;
    while (*r.at) {
        SMP_TRY(read_cell(&r));
        r.cell++;
        if (*r.at == ',') {
            r.at++;
        } else if (*r.at == '\n') {
            r.line = ++r.at;
            r.row++;
            r.cell = 0;
        }
    }
    name_backwards(&r);
    return SMP_OK;
}

/* Cells of numbers and capitals, divided by commas. */
static bool recognise(const char *text)
{
    const char *c = text + strspn(text, " \t\",\r\n(");
    const char *digits = c;
    while (isdigit((unsigned char)*c))
        c++;
    return c > digits && isupper((unsigned char)*c);
}

const smp_foreign_reader smp__foreign_torch_csv = {
    .name = "torch-csv",
    .summary = "schedules of torch.distributed.pipelining, a row per rank",
    .recognise = recognise,
    .read = read,
};
