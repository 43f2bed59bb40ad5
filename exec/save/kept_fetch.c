/* States of several machines; see the header. First ranks of machines say what lies in their
 * folders, all ranks what they read, so all know who lacks what, and who has it first. */
#include "exec/save/kept_fetch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/save/keep_state.h"

/* "MACHINE STATE", a line for each place that holds something. */
static smp_status say_states(const smp *s, smp_text *text)
{
    const struct smp__keep *k = smp__keep_of(s);
    smp_status status = SMP_OK;
    for (int place = 0; place < SMP__KEPT_PLACES && status == SMP_OK; place++) {
        smp__kept_state here;
        status = smp__kept_look(k->folder, place, &here);
        if (status == SMP_OK && here.step >= 0 && here.bytes == k->state.bytes) {
            smp_text_append(text, "%d ", k->machines.own);
            smp__kept_state_print(&here, text);
            smp_text_append(text, "\n");
        }
        smp__kept_state_free(&here);
    }
    return status == SMP_OK && text->failed ? SMP_ERR_NO_MEMORY : status;
}

static smp_status take_states(char *text, int machines, smp__kept_list *list)
{
    SMP_TRY(smp__kept_states_parse(text, machines, &list->state, &list->n));
    list->chosen = calloc((size_t)list->n + 1, sizeof *list->chosen);
    if (!list->chosen)
        return smp_fail_memory((size_t)list->n * sizeof *list->chosen);
    return smp__kept_choose(list->state, list->n, list->chosen, &list->n_chosen);
}

smp_status smp__kept_list_make(smp *s, smp__kept_list *list)
{
    smp_text own = {0};
    char *all = NULL;
    size_t bytes;
    smp_status status = smp__keep_is_first(s) ? say_states(s, &own) : SMP_OK;
    status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK)
        status = smp__comm_gather(s->comm, own.data ? own.data : "", own.length, &all, &bytes);
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm, take_states(all, smp__keep_of(s)->machines.n, list));
    free(all);
    smp_text_free(&own);
    return status;
}

void smp__kept_list_free(smp__kept_list *list)
{
    smp__kept_states_free(list->state, list->n);
    free(list->chosen);
    *list = (smp__kept_list){0};
}

/* What a machine has of a state; NULL: nothing. */
static const smp__kept_state *find_state(const smp__kept_list *list, const smp__kept_state *of,
                                         int machine)
{
    for (int i = 0; i < list->n; i++)
        if (list->state[i].machine == machine && smp__kept_same(&list->state[i], of))
            return &list->state[i];
    return NULL;
}

/* A place for a state of which a machine has nothing: one that holds nothing, or has no name, or of
 * the earliest step. */
static int choose_place(const smp__kept_list *list, int machine)
{
    int64_t worth[SMP__KEPT_PLACES] = {-2, -2, -2};
    int place = 0;
    for (int i = 0; i < list->n; i++)
        if (list->state[i].machine == machine)
            worth[list->state[i].place] = list->state[i].named ? list->state[i].step : -1;
    for (int i = 1; i < SMP__KEPT_PLACES; i++)
        place = worth[i] < worth[place] ? i : place;
    return place;
}

/* What is to come to a machine, from the first that has each of it: messages, if one of the two is
 * this rank's and both are first ranks. has: [machines] what each has; *wanted, which is spoilt, is
 * read there. */
static smp_status add_messages(const smp *s, const smp__kept_state *const *has, int to,
                               smp__spans *wanted, smp__byte_messages *messages)
{
    const smp__machines *m = &smp__keep_of(s)->machines;
    smp__spans part = {0}, left = {0};
    smp_status status = SMP_OK;
    for (int i = -1; i < m->n && wanted->n > 0 && status == SMP_OK; i++) { /* first what is there */
        const int from = i < 0 ? to : i;
        if (!has[from] || i == to)
            continue;
        status = smp__spans_common(wanted, &has[from]->spans, &part);
        const bool travels = from != to && part.n > 0;
        if (status == SMP_OK && travels && s->comm->world_rank == m->first[from])
            status = smp__byte_messages_add(&messages[1], m->first[to], true, &part);
        if (status == SMP_OK && travels && s->comm->world_rank == m->first[to])
            status = smp__byte_messages_add(&messages[0], m->first[from], false, &part);
        if (status == SMP_OK)
            status = smp__spans_without(wanted, &has[from]->spans, &left);
        const smp__spans swapped = *wanted;
        *wanted = left;
        left = swapped;
    }
    smp__spans_free(&part);
    smp__spans_free(&left);
    if (status == SMP_OK && wanted->n > 0)
        return smp_fail(SMP_ERR_INPUT, "a state in memory: not all of it is there");
    return status;
}

/* The first rank's: what comes here, and what goes from here. */
static smp_status plan_messages(const smp *s, const smp__kept_list *list, const smp__kept_state *of,
                                smp__spans *wanted, smp__byte_messages *messages)
{
    const int machines = smp__keep_of(s)->machines.n;
    const smp__kept_state **has = calloc((size_t)machines, sizeof *has);
    smp_status status = has ? SMP_OK : smp_fail_memory((size_t)machines * sizeof *has);
    for (int i = list->n - 1; i >= 0 && has; i--)
        if (smp__kept_same(&list->state[i], of))
            has[list->state[i].machine] = &list->state[i];
    for (int machine = 0; machine < machines && status == SMP_OK; machine++)
        status = add_messages(s, has, machine, &wanted[machine], messages);
    free(has);
    return status;
}

/* A state for which there is no room is passed over. Nothing is given up before that is known. */
static smp_status make_room(struct smp__keep *k, const smp__kept_state *here, bool has)
{
    smp_status status = smp__kept_allocate(k->folder, here->place, &here->spans);
    if (status == SMP_ERR_FAILED)
        status = smp_fail(SMP_ERR_INPUT, "%s", smp_last_error());
    SMP_TRY(status);
    if (has)
        return SMP_OK;
    SMP_TRY(smp__kept_unname(k->folder, here->place));
    return smp__kept_claim(k->folder, here->place, NULL);
}

/* This machine's: what it has, and what its ranks read. A place that has a part of it keeps its
 * name: what comes lies where its index says that there is nothing. */
static smp_status make_place(const smp *s, const smp__kept_list *list, const smp__kept_state *of,
                             const smp__spans *wanted, smp__kept_state *here)
{
    struct smp__keep *k = smp__keep_of(s);
    const smp__kept_state *has = find_state(list, of, k->machines.own);
    const smp__spans none = {0};
    here->place = has ? has->place : choose_place(list, k->machines.own);
    SMP_TRY(smp__spans_both(has ? &has->spans : &none, wanted, &here->spans));
    here->named =
        has && has->named && smp__spans_bytes(&here->spans) == smp__spans_bytes(&has->spans);
    if (!smp__keep_is_first(s) || here->named)
        return SMP_OK;
    return make_room(k, here, has);
}

typedef struct fetching {
    smp__byte_messages messages[2]; /* received, sent */
} fetching;

static smp_status test_fetched(void *of, bool *done)
{
    fetching *f = of;
    int received = 0, sent = 0;
    SMP_TRY(smp__byte_messages_test(&f->messages[0], &received));
    SMP_TRY(smp__byte_messages_test(&f->messages[1], &sent));
    *done = received + sent == 0;
    return SMP_OK;
}

static void describe_fetched(const void *of, char *buffer, size_t size)
{
    (void)of;
    snprintf(buffer, size, "what another machine has of the state in memory");
}

static smp_status travel(smp *s, fetching *f, const smp__kept_state *here)
{
    struct smp__keep *k = smp__keep_of(s);
    char *base = k->map[here->place];
    smp_status status = smp__byte_messages_begin(&f->messages[0], s->comm, false, base);
    if (status == SMP_OK)
        status = smp__byte_messages_begin(&f->messages[1], s->comm, true, base);
    if (status == SMP_OK)
        status = smp__comm_wait_until(s->comm, &(smp_wait){.patient = true}, test_fetched,
                                      describe_fetched, f);
    return status == SMP_OK ? SMP_OK : smp__comm_notify(s->comm, status);
}

/* The first rank's: the place says what it has now, and alone has the name. */
static smp_status name_place(smp__kept_folder *folder, const smp__kept_state *here)
{
    for (int i = 0; i < SMP__KEPT_PLACES && !here->named; i++) {
        smp__kept_state other;
        const smp_status status = smp__kept_look(folder, i, &other);
        const bool in_the_way = other.named && other.step == here->step && i != here->place;
        smp__kept_state_free(&other);
        SMP_TRY(status);
        if (in_the_way)
            SMP_TRY(smp__kept_unname(folder, i));
    }
    if (here->named)
        return SMP_OK;
    SMP_TRY(smp__kept_unname(folder, here->place));
    SMP_TRY(smp__kept_extend(folder, here->place, here));
    return smp__kept_name(folder, here->place, here->step);
}

/* One machine after another: whatever ends the job meanwhile, the state has no less than the names
 * of the others. Collective. */
static smp_status name_places(smp *s, const smp__kept_state *here)
{
    struct smp__keep *k = smp__keep_of(s);
    for (int machine = 0; machine < k->machines.n; machine++) {
        const bool own = s->comm->world_rank == k->machines.first[machine];
        SMP_TRY(smp__comm_agree(s->comm, own ? name_place(k->folder, here) : SMP_OK));
    }
    return SMP_OK;
}

static smp_status plan_fetch(const smp *s, const smp__kept_list *list, const smp__kept_state *of,
                             smp__spans *wanted, fetching *f, smp__kept_state *here)
{
    const smp__machines *m = &smp__keep_of(s)->machines;
    *here = *of;
    here->spans = (smp__spans){0};
    SMP_TRY(make_place(s, list, of, &wanted[m->own], here));
    return smp__keep_is_first(s) ? plan_messages(s, list, of, wanted, f->messages) : SMP_OK;
}

smp_status smp__kept_fetch(smp *s, const smp__kept_list *list, int i)
{
    struct smp__keep *k = smp__keep_of(s);
    const smp__kept_state of = list->state[list->chosen[i]];
    smp__kept_state here = {.step = -1};
    smp__spans own = {0}, *reads = NULL, *wanted = NULL;
    fetching f = {0};
    smp_status status = smp__comm_agree(s->comm, smp__part_read_spans(s, &k->part, &own));
    if (status == SMP_OK)
        status = smp__machines_gather(s, &own, &reads);
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm, smp__machines_unite(s, &k->machines, reads, &wanted));
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm, plan_fetch(s, list, &of, wanted, &f, &here));
    if (status == SMP_OK && k->machines.n > 1)
        status = smp__comm_agree(s->comm, travel(s, &f, &here));
    if (status == SMP_OK)
        status = name_places(s, &here);
    k->fetched += f.messages[0].bytes;
    smp__byte_messages_free(&f.messages[0], s->comm);
    smp__byte_messages_free(&f.messages[1], s->comm);
    smp__kept_state_free(&here);
    if (wanted)
        smp__machines_free_united(&k->machines, wanted);
    smp__machines_free_sets(s, reads);
    smp__spans_free(&own);
    return status;
}
