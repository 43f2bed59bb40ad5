/* From events to the life of a job: a state per incarnation (ranks from one start to their end),
 * and the recovery that is under way; see the header.
 *
 * Steps that count are those that were not done before: of an incarnation's time, from its first
 * step to its last, the share that its steps above the highest one before have. */
#include "tools/life/job_life.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/yaml/yaml_field.h"

enum { MOST_ITEMS = 1 << 22, MOST_DEVICES = 1 << 20 };
static const int64_t MOST_STEPS = (int64_t)1 << 40; /* whose sums do not overflow */
static const double most_s = 1e12;                  /* since 1970, or of anything */

const smp__life_form smp__life_forms[SMP__LIFE_N_PARTS] = {
#define SMP__LIFE_ROW(name, key, text, letter) {key, text, letter},
    SMP__LIFE_PARTS(SMP__LIFE_ROW)
#undef SMP__LIFE_ROW
};

struct smp__life_state {
    smp__life *life;
    double begin_s, now_s; /* of the first event, since 1970; of this one, since that */
    bool begun;
    int devices; /* of the ranks that were started last */
    int64_t batch;

    bool runs;               /* steps are done: */
    double first_s, mark_s;  /* when the first and the last were seen */
    int64_t from, done, top; /* steps: gone on from; done; the highest before */

    int pending;      /* the turn after which steps have to be done again; -1: none */
    double quiet_s;   /* the last step before it, or its own time */
    double counted_s; /* the last step of ranks that have ended */
};

/* A text that may have been cut to so many bytes ends with a whole character. */
static void end_whole(char *text, size_t size)
{
    size_t at = strlen(text), n = 1;
    if (at + 1 < size)
        return;
    while (at > 0 && ((unsigned char)text[at - 1] & 0xc0) == 0x80)
        at--, n++;
    const unsigned char first = at > 0 ? (unsigned char)text[at - 1] : 0;
    const size_t needs = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    if (at > 0 && n < needs)
        text[at - 1] = '\0';
}

/* A place at the end of an array; NULL: no memory, or too many. */
static void *grown(void **items, int n, size_t size)
{
    const int most = n == 0 ? 8 : n;
    if (n >= MOST_ITEMS)
        return NULL;
    if ((n & (n - 1)) == 0 && (n == 0 || n >= 8)) { /* full at every power of two from 8 on */
        void *more = realloc(*items, (size_t)(n == 0 ? most : 2 * most) * size);
        if (!more)
            return NULL;
        *items = more;
    }
    return memset((char *)*items + (size_t)n * size, 0, size);
}

#define ADD(items, n) grown((void **)&(items), (n), sizeof *(items))

static smp_status fail_room(int n)
{
    return n >= MOST_ITEMS ? smp_fail(SMP_ERR_INPUT, "events: more than %d of a kind", MOST_ITEMS)
                           : smp_fail_memory((size_t)n);
}

static smp_status add_level(smp__life_state *s, int devices)
{
    smp__life *l = s->life;
    smp__life_level *level = ADD(l->level, l->n_level);
    if (!level)
        return fail_room(l->n_level);
    *level = (smp__life_level){s->now_s, devices};
    l->n_level++;
    l->most = devices > l->most ? devices : l->most;
    return SMP_OK;
}

static smp_status add_span(smp__life *l, smp__life_part part, double from_s, double to_s,
                           int devices)
{
    if (to_s <= from_s)
        return SMP_OK;
    smp__life_span *span = ADD(l->span, l->n_span);
    if (!span)
        return fail_room(l->n_span);
    *span = (smp__life_span){part, from_s, to_s, devices};
    l->n_span++;
    return SMP_OK;
}

static smp_status add_rate(smp__life_state *s, double to_s, int64_t step)
{
    smp__life *l = s->life;
    if (to_s <= s->mark_s || step <= s->done)
        return SMP_OK;
    smp__life_rate *rate = ADD(l->rate, l->n_rate);
    if (!rate)
        return fail_room(l->n_rate);
    const double per_s = (double)(step - s->done) / (to_s - s->mark_s);
    *rate = (smp__life_rate){s->mark_s, to_s, per_s * (double)(s->batch > 0 ? s->batch : 1)};
    l->in_samples = s->batch > 0;
    l->n_rate++;
    return SMP_OK;
}

static smp_status add_turn(smp__life *l, const smp__life_turn *turn)
{
    smp__life_turn *more = ADD(l->turn, l->n_turn);
    if (!more)
        return fail_room(l->n_turn);
    *more = *turn;
    end_whole(more->what, sizeof more->what);
    l->n_turn++;
    return SMP_OK;
}

/* A turn that steps have to be done again after; what was pending stays as it is. */
static smp_status begin_turn(smp__life_state *s, double at_s, const char *what)
{
    smp__life_turn turn = {.at_s = at_s, .before = s->devices, .step = s->top};
    snprintf(turn.what, sizeof turn.what, "%s", what);
    s->pending = s->life->n_turn;
    return add_turn(s->life, &turn);
}

/* A turn that nothing has to be resumed after. */
static smp_status note(smp__life_state *s, const char *format, int a, int b)
{
    smp__life_turn turn = {.at_s = s->now_s, .step = s->top};
    snprintf(turn.what, sizeof turn.what, format, a, b);
    return add_turn(s->life, &turn);
}

static smp_status mark(smp__life_state *s, double at_s, int64_t step)
{
    SMP_TRY(add_rate(s, at_s, step));
    if (step > s->done) {
        s->mark_s = fmax(s->mark_s, at_s);
        s->done = step;
    }
    return SMP_OK;
}

/* The ranks have ended, or their supervisor has. Of the first of their steps the end alone is seen:
 * it is taken for as long as the others, if there was so much time before. */
static smp_status end_run(smp__life_state *s)
{
    const double n = (double)(s->done - s->from);
    const double fresh = (double)(s->done - (s->top > s->from ? s->top : s->from));
    if (!s->runs)
        return SMP_OK;
    s->runs = false;
    if (n > 1.0 && fresh > 0.0)
        s->life->part_s[SMP__LIFE_STEPS] +=
            fmin((s->mark_s - s->first_s) / (n - 1.0) * fresh, s->mark_s - s->counted_s);
    s->counted_s = s->mark_s;
    s->top = s->done > s->top ? s->done : s->top;
    s->life->steps = s->top;
    s->quiet_s = s->mark_s;
    return add_span(s->life, SMP__LIFE_STEPS, s->first_s, s->mark_s, s->devices);
}

/* ---- members of an event ---- */

static smp_status read_int(const smp_yaml_node *event, const char *key, int64_t most, int64_t *out)
{
    return smp__field_int64(event, "event", key, 0, most < MOST_STEPS ? most : MOST_STEPS, out);
}

static smp_status read_devices(const smp_yaml_node *event, const char *key, int *out)
{
    return smp__field_int(event, "event", key, 0, MOST_DEVICES, out);
}

/* Members that files of earlier versions lack. */
static smp_status read_optional(const smp_yaml_node *event, const char *key, double *out)
{
    *out = 0.0;
    return smp_yaml_get(event, key) ? smp__field_double(event, "event", key, 0.0, most_s, out)
                                    : SMP_OK;
}

static smp_status read_word(const smp_yaml_node *event, const char *key, const char **out)
{
    const smp_yaml_node *node;
    SMP_TRY(smp__field(event, "event", key, &node));
    return smp_yaml_string(node, key, out);
}

/* ---- events ---- */

/* The job begins now. */
static void forget(smp__life_state *s)
{
    smp__life *life = s->life, before = *life;
    *life = (smp__life){.skipped = before.skipped};
    memcpy(life->first_skipped, before.first_skipped, sizeof life->first_skipped);
    smp__life_free(&before);
    *s = (smp__life_state){
        .life = life, .begin_s = s->begin_s + s->now_s, .begun = true, .pending = -1};
}

/* A supervisor that was refused before it started ranks is no part of the job's life. */
static smp_status take_begin(smp__life_state *s, const smp_yaml_node *event)
{
    smp__life *l = s->life;
    int at_hand, most;
    SMP_TRY(read_devices(event, "at_hand", &at_hand));
    SMP_TRY(read_devices(event, "most", &most));
    SMP_TRY(end_run(s));
    if (l->ended && s->devices == 0)
        forget(s);
    l->ended = false;
    l->most = most > l->most ? most : l->most;
    if (l->supervisors++ > 0)
        SMP_TRY(begin_turn(s, s->now_s, "the supervisor is started again"));
    s->quiet_s = s->now_s;
    return add_level(s, at_hand);
}

static smp_status take_devices(smp__life_state *s, const smp_yaml_node *event)
{
    int at_hand;
    SMP_TRY(read_devices(event, "at_hand", &at_hand));
    return add_level(s, at_hand);
}

/* The first plan is what nothing runs before. */
static smp_status take_plan(smp__life_state *s, const smp_yaml_node *event)
{
    int devices;
    bool ahead;
    const smp_yaml_node *node;
    SMP_TRY(read_devices(event, "devices", &devices));
    SMP_TRY(smp__field(event, "event", "ahead", &node));
    SMP_TRY(smp_yaml_bool(node, "ahead", &ahead));
    if (ahead || s->runs || s->pending >= 0)
        return SMP_OK;
    const double from_s = s->quiet_s;
    s->quiet_s = s->now_s;
    return add_span(s->life, SMP__LIFE_PLAN, from_s, s->now_s, devices);
}

static smp_status take_start(smp__life_state *s, const smp_yaml_node *event)
{
    int devices;
    double batch;
    SMP_TRY(read_devices(event, "devices", &devices));
    SMP_TRY(read_optional(event, "global_batch", &batch));
    SMP_TRY(end_run(s));
    s->devices = devices;
    s->batch = (int64_t)batch;
    if (devices > s->life->most)
        s->life->most = devices;
    return SMP_OK;
}

/* The parts of a recovery lie before it, one behind the other, after the last step. */
static smp_status add_parts(smp__life_state *s, const double *part_s)
{
    double to_s = s->now_s, from_s[SMP__LIFE_N_PARTS];
    for (int i = SMP__LIFE_N_PARTS - 1; i > SMP__LIFE_STEPS; i--) {
        from_s[i] = fmax(to_s - part_s[i], s->quiet_s);
        to_s = from_s[i];
    }
    for (int i = SMP__LIFE_STEPS + 1; i < SMP__LIFE_N_PARTS; i++)
        SMP_TRY(add_span(s->life, (smp__life_part)i, from_s[i],
                         i + 1 < SMP__LIFE_N_PARTS ? from_s[i + 1] : s->now_s, s->devices));
    return SMP_OK;
}

static smp_status take_resumed(smp__life_state *s, const smp_yaml_node *event)
{
    smp__life_turn *turn;
    int64_t step, lost, done;
    double part_s[SMP__LIFE_N_PARTS] = {0};
    const char *from;
    SMP_TRY(read_int(event, "step", INT64_MAX / 4, &step));
    SMP_TRY(read_int(event, "lost_steps", INT64_MAX / 4, &lost));
    SMP_TRY(read_word(event, "from", &from));
    done = step + 1;
    if (smp_yaml_get(event, "done"))
        SMP_TRY(read_int(event, "done", INT64_MAX / 4, &done));
    for (int i = SMP__LIFE_STEPS + 1; i < SMP__LIFE_N_PARTS; i++)
        SMP_TRY(read_optional(event, smp__life_forms[i].key, &part_s[i]));
    SMP_TRY(end_run(s));
    if (s->pending < 0) {
        SMP_TRY(begin_turn(s, s->now_s, "the job begins"));
        s->life->turn[s->pending].before = 0;
    } else {
        for (int i = SMP__LIFE_STEPS + 1; i < SMP__LIFE_N_PARTS; i++)
            s->life->part_s[i] += part_s[i];
        s->life->lost_steps += lost;
    }
    turn = &s->life->turn[s->pending];
    turn->resumed = true;
    turn->after = s->devices;
    turn->step = step;
    turn->lost_steps = lost;
    snprintf(turn->from, sizeof turn->from, "%s", from);
    end_whole(turn->from, sizeof turn->from);
    memcpy(turn->part_s, part_s, sizeof part_s);
    SMP_TRY(add_parts(s, part_s));
    s->runs = true;
    s->from = step;
    s->done = done > step ? done : step;
    s->first_s = s->mark_s = s->now_s;
    s->pending = -1;
    return SMP_OK;
}

static smp_status take_steps(smp__life_state *s, const smp_yaml_node *event)
{
    int64_t step;
    SMP_TRY(read_int(event, "step", INT64_MAX / 4, &step));
    return s->runs ? mark(s, s->now_s, step) : SMP_OK;
}

static smp_status take_ended(smp__life_state *s, const smp_yaml_node *event)
{
    const char *why;
    int64_t step;
    double since_s, detect_s;
    SMP_TRY(read_word(event, "why", &why));
    SMP_TRY(read_int(event, "step", INT64_MAX / 4, &step));
    SMP_TRY(read_optional(event, "since_step_s", &since_s));
    SMP_TRY(read_optional(event, "detect_s", &detect_s));
    if (s->runs)
        SMP_TRY(mark(s, s->now_s - since_s, step));
    SMP_TRY(end_run(s));
    const bool slow = strcmp(why, "slow") == 0;
    if (!slow && strcmp(why, "devices") != 0)
        return SMP_OK;
    s->life->changes++;
    return begin_turn(s, fmax(s->now_s - detect_s, s->quiet_s),
                      slow ? "another plan, as fast as devices are" : "other devices are at hand");
}

static smp_status take_failure(smp__life_state *s, const smp_yaml_node *event)
{
    char who[80], how[64], what[160];
    int rank, device, signal, code;
    bool stalled, host_lost = false;
    const char *host = "";
    const smp_yaml_node *node;
    SMP_TRY(smp__field_int(event, "event", "rank", -1, MOST_DEVICES, &rank));
    SMP_TRY(smp__field_int(event, "event", "device", -1, MOST_DEVICES, &device));
    SMP_TRY(smp__field_int(event, "event", "signal", 0, 1 << 16, &signal));
    SMP_TRY(smp__field_int(event, "event", "exit_code", 0, 1 << 16, &code));
    SMP_TRY(smp__field(event, "event", "stalled", &node));
    SMP_TRY(smp_yaml_bool(node, "stalled", &stalled));
    if (smp_yaml_get(event, "host_lost")) {
        SMP_TRY(smp_yaml_bool(smp_yaml_get(event, "host_lost"), "host_lost", &host_lost));
        SMP_TRY(read_word(event, "host", &host));
    }
    SMP_TRY(end_run(s));
    snprintf(who, sizeof who, "rank %d (device %d)", rank, device);
    if (stalled)
        snprintf(how, sizeof how, "did not beat");
    else if (signal > 0 || code > 128)
        snprintf(how, sizeof how, "died (signal %d)", signal > 0 ? signal : code - 128);
    else
        snprintf(how, sizeof how, "failed (exit code %d)", code);
    if (host_lost)
        snprintf(what, sizeof what, "host %s was lost", host);
    else
        snprintf(what, sizeof what, "%s %s", rank >= 0 ? who : "the job", how);
    s->life->failures++;
    return begin_turn(s, s->now_s, what);
}

static smp_status take_wait(smp__life_state *s, const smp_yaml_node *event)
{
    int at_hand, needed;
    SMP_TRY(read_devices(event, "at_hand", &at_hand));
    SMP_TRY(read_devices(event, "needed", &needed));
    return note(s, "waits: %d of %d devices at hand", at_hand, needed);
}

/* A host of several is up, lost or refused. */
static smp_status take_host(smp__life_state *s, const smp_yaml_node *event)
{
    const char *host, *state;
    smp__life_turn turn = {.at_s = s->now_s, .step = s->top};
    SMP_TRY(read_word(event, "host", &host));
    SMP_TRY(read_word(event, "state", &state));
    snprintf(turn.what, sizeof turn.what, "host %s: %s", host, state);
    return add_turn(s->life, &turn);
}

static smp_status take_slow(smp__life_state *s, const smp_yaml_node *event)
{
    int device;
    double speed;
    SMP_TRY(smp__field_int(event, "event", "device", -1, MOST_DEVICES, &device));
    SMP_TRY(smp__field_double(event, "event", "speed", 0.0, 1.0, &speed));
    return note(s,
                speed < 1.0 ? "device %d is slow: %d %% of its usual speed"
                            : "device %d is no longer taken for slow",
                device, (int)(100.0 * speed + 0.5));
}

/* Events that are told with one number. */
static smp_status take_noted(smp__life_state *s, const smp_yaml_node *event, const char *name)
{
    static const struct {
        const char *name, *key, *text;
    } noted[] = {{"idle", "devices", "devices idle: %d"},
                 {"left_out", "device", "device %d is left out"},
                 {"signal", "signal", "signal %d: the job is to end"},
                 {"error", "exit_code", "the job fails (exit code %d)"}};
    int number;
    for (size_t i = 0; i < sizeof noted / sizeof noted[0]; i++)
        if (strcmp(noted[i].name, name) == 0) {
            SMP_TRY(read_devices(event, noted[i].key, &number));
            return note(s, noted[i].text, number, 0);
        }
    return SMP_OK;
}

static smp_status take_end(smp__life_state *s, const smp_yaml_node *event)
{
    SMP_TRY(smp__field_int(event, "event", "exit_code", 0, 255, &s->life->exit_code));
    s->life->ended = true;
    return end_run(s);
}

static smp_status take_named(smp__life_state *s, const smp_yaml_node *event, const char *name)
{
    static const struct {
        const char *name;
        smp_status (*take)(smp__life_state *, const smp_yaml_node *);
    } takes[] = {{"begin", take_begin}, {"plan", take_plan},       {"devices", take_devices},
                 {"start", take_start}, {"resumed", take_resumed}, {"steps", take_steps},
                 {"ended", take_ended}, {"failure", take_failure}, {"wait", take_wait},
                 {"host", take_host},   {"slow", take_slow},       {"end", take_end}};
    for (size_t i = 0; i < sizeof takes / sizeof takes[0]; i++)
        if (strcmp(takes[i].name, name) == 0)
            return takes[i].take(s, event);
    return take_noted(s, event, name);
}

/* The clock begins with the first event, and goes on with each that is taken. */
static smp_status take_event(smp__life_state *s, const smp_yaml_node *event)
{
    const char *name;
    double time_s;
    SMP_TRY(smp_yaml_map(event, "event"));
    SMP_TRY(read_word(event, "event", &name));
    SMP_TRY(smp__field_double(event, "event", "time_s", 0.0, most_s, &time_s));
    /* what an earlier event file of this name has lost is not missed */
    if (!s->begun && strcmp(name, "begin") != 0)
        return smp_fail(SMP_ERR_INPUT, "event: got '%s', expected 'begin' first", name);
    const bool begun = s->begun;
    const double before_s = s->now_s;
    s->begin_s = begun ? s->begin_s : time_s;
    s->now_s = fmax(before_s, time_s - s->begin_s); /* a clock may be set back */
    s->begun = true;
    const smp_status status = take_named(s, event, name);
    if (status == SMP_OK) {
        s->life->length_s = s->now_s;
    } else {
        s->begun = begun;
        s->now_s = before_s;
    }
    return status;
}

smp_status smp__life_open(smp__life *life, smp__life_state **out)
{
    *life = (smp__life){0};
    *out = calloc(1, sizeof **out);
    if (!*out)
        return smp_fail_memory(sizeof **out);
    (*out)->life = life;
    (*out)->pending = -1;
    return SMP_OK;
}

smp_status smp__life_take(smp__life_state *state, const char *where, const char *line, size_t bytes)
{
    smp_yaml *yaml = NULL;
    smp_status status = smp_yaml_parse(where, line, bytes, &yaml);
    if (status == SMP_OK)
        status = take_event(state, smp_yaml_root(yaml));
    smp_yaml_destroy(yaml);
    return status;
}

smp_status smp__life_close(smp__life_state *state)
{
    smp_status status = SMP_OK;
    if (!state)
        return SMP_OK;
    status = end_run(state);
    free(state);
    return status;
}

void smp__life_free(smp__life *life)
{
    free(life->level);
    free(life->span);
    free(life->rate);
    free(life->turn);
    *life = (smp__life){0};
}
