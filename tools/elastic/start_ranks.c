/* Starting ranks; see the header. */
#include "tools/elastic/start_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/checkpoint/checkpoint_copy.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "graph/base/clock.h"
#include "tools/elastic/hosts/agent.h"
#include "tools/elastic/hosts/agent_command.h"
#include "tools/elastic/program_ranks.h"

enum { PATH_BYTES = 4096 };

static smp_status copy_plan(const char *from, const char *to)
{
    char *text = NULL;
    size_t bytes = 0;
    SMP_TRY(smp_file_read(from, (size_t)1 << 30, &text, &bytes));
    const smp_status status = smp_file_write(to, text, bytes);
    free(text);
    return status;
}

/* Entry i of a list with commas; the number itself where there is no list. */
static void add_entry(smp_text *text, const char *list, int i)
{
    for (; list && i > 0 && *list; i--)
        list += strcspn(list, ",") + (list[strcspn(list, ",")] == ',');
    if (list)
        smp_text_append_bytes(text, list, strcspn(list, ","));
    else
        smp_text_append(text, "%d", i);
}

static bool is_several(const smp__elastic_job *job)
{
    return job->hosts.n > 1;
}

/* CUDA shows ranks the GPUs of their slots alone, which they take in turn. Of ranks from..to, on
 * one host; empty: there are none. */
static void list_gpus(const smp__elastic_job *job, int from, int to, smp_text *list)
{
    for (int i = from; i < to && job->hosts.options.gpus; i++) {
        const smp__slot *slot = &job->slots.slot[job->picked[i]];
        smp_text_append(list, "%s", i > from ? "," : "");
        add_entry(list, job->hosts.host[slot->host].local ? job->gpus : NULL, slot->index);
    }
}

static smp_status show_gpus(const smp__elastic_job *job)
{
    smp_text list = {0};
    if (is_several(job))
        return SMP_OK; /* each host's stand in the command */
    list_gpus(job, 0, job->devices, &list);
    const bool failed =
        list.failed || (list.length > 0 && setenv("CUDA_VISIBLE_DEVICES", list.data, 1) != 0);
    smp_text_free(&list);
    return failed ? smp_fail_memory(1) : SMP_OK;
}

/* What mpirun starts its daemons on other hosts with lies in the folder of what ranks share. */
static smp_status write_shell(const smp__elastic_job *job, char shell[PATH_BYTES])
{
    char path[PATH_BYTES];
    SMP_TRY(smp__agent_shared(job->keep, path, sizeof path - 16));
    strcat(path, "/shell");
    if (strchr(path, ' '))
        return smp_fail(SMP_ERR_INPUT, "%s: mpirun takes no blanks: choose another --keep-in",
                        path);
    snprintf(shell, PATH_BYTES, "/bin/sh %.*s", PATH_BYTES - 16, path);
    return smp__agent_script(job->hosts.agent, path);
}

int smp__elastic_most_on_host(const smp__elastic_job *job)
{
    int most = 0;
    for (int i = 0, n = 0; i < job->devices; i++) {
        const bool same = i > 0 && job->slots.slot[job->picked[i]].host ==
                                       job->slots.slot[job->picked[i - 1]].host;
        n = same ? n + 1 : 1;
        most = n > most ? n : most;
    }
    return most;
}

static smp_status prepare_launcher(const smp__elastic_job *job)
{
    char shared[PATH_BYTES], shell[PATH_BYTES];
    SMP_TRY(smp__agent_shared(job->keep, shared, sizeof shared));
    if (is_several(job))
        SMP_TRY(write_shell(job, shell));
    SMP_TRY(smp__launcher_prepare(smp__elastic_most_on_host(job), is_several(job) ? shell : NULL));
    return setenv("OMPI_MCA_btl_vader_backing_directory", shared, 0) == 0 ? SMP_OK
                                                                          : smp_fail_memory(1);
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Weights that are given are for the beginning: a state that is gone on from has its own. */
static bool is_for_beginning(const smp__elastic_options *o, const char *option)
{
    if (begins(option, "--weights=") || begins(option, "--weights-only="))
        return true;
    return !o->run.train.weights &&
           (begins(option, "--names=") || begins(option, "--weights-map="));
}

/* Words of the command, and their number. */
typedef struct command {
    char **word; /* [most + 1], NULL at the end */
    int n, most;
    smp_arena *arena;
} command;

static smp_status add(command *c, const char *word)
{
    if (c->n == c->most)
        return smp_fail(SMP_ERR_INPUT, "--launcher: more than %d words", c->most);
    c->word[c->n] = smp_arena_strdup(c->arena, word);
    return c->word[c->n++] ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status add_option(command *c, const char *name, const char *value)
{
    const char *word = smp_arena_printf(c->arena, "--%s=%s", name, value);
    return word ? add(c, word) : SMP_ERR_NO_MEMORY;
}

static smp_status add_launcher(command *c, const smp__elastic_job *job)
{
    char *rest = NULL;
    char *words =
        smp_arena_strdup(c->arena, job->options->launcher ? job->options->launcher : "mpirun");
    if (!words)
        return SMP_ERR_NO_MEMORY;
    if (!job->options->launcher)
        SMP_TRY(prepare_launcher(job));
    for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        SMP_TRY(add(c, w));
    return SMP_OK;
}

static smp_status add_options(command *c, const smp__elastic_job *job)
{
    const smp__elastic_options *o = job->options;
    const char *option = o->passed.data;
    char every[24];
    const bool kept = o->keep_every > 0 &&
                      (smp__checkpoint_exists(job->keep) || smp__hosts_have_state(&job->hosts));
    const bool saved = smp__checkpoint_exists(job->folder) || kept;
    for (int i = 0; i < o->n_passed; i++, option += strlen(option) + 1)
        if (!saved || !is_for_beginning(o, option))
            SMP_TRY(add(c, option));
    if (saved || !o->run.train.given)
        SMP_TRY(add_option(c, "resume", "auto"));
    if (o->run.train.report && o->events)
        SMP_TRY(add_option(c, "events", o->events));
    if (o->keep_every > 0) {
        snprintf(every, sizeof every, "%lld", (long long)o->keep_every);
        SMP_TRY(add_option(c, "keep-every", every));
        SMP_TRY(add_option(c, "keep-in", job->keep));
    }
    return add_option(c, "rows", job->rows.path);
}

/* -n N PROGRAM ..., of ranks that are alike. */
static smp_status add_ranks(command *c, const smp__elastic_job *job, int n)
{
    const char *number = smp_arena_printf(c->arena, "%d", n);
    if (!number)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(add(c, "-n"));
    SMP_TRY(add(c, number));
    for (int i = 0; i < job->options->n_command; i++)
        SMP_TRY(add(c, job->options->command[i]));
    if (job->options->command)
        return SMP_OK;
    SMP_TRY(add(c, job->program));
    SMP_TRY(add(c, job->plan));
    return add_options(c, job);
}

/* --host NAME:N -n N PROGRAM ..., of ranks from..to. */
static smp_status add_host(command *c, const smp__elastic_job *job, int from, int to)
{
    smp_text gpus = {0};
    const int host = job->slots.slot[job->picked[from]].host;
    const char *place = smp_arena_printf(c->arena, "%s:%d", job->hosts.host[host].name, to - from);
    smp_status status = place ? SMP_OK : SMP_ERR_NO_MEMORY;
    list_gpus(job, from, to, &gpus);
    if (status == SMP_OK && gpus.length > 0) {
        const char *shown = smp_arena_printf(c->arena, "CUDA_VISIBLE_DEVICES=%s", gpus.data);
        status = shown && !gpus.failed ? add(c, "-x") : SMP_ERR_NO_MEMORY;
        if (status == SMP_OK)
            status = add(c, shown);
    }
    smp_text_free(&gpus);
    for (int i = 0; status == SMP_OK && job->options->command && smp__program_variables[i]; i++) {
        status = add(c, "-x");
        if (status == SMP_OK)
            status = add(c, smp__program_variables[i]);
    }
    if (status == SMP_OK)
        status = add(c, "--host");
    if (status == SMP_OK)
        status = add(c, place);
    return status == SMP_OK ? add_ranks(c, job, to - from) : status;
}

/* Host by host, as the slots are. */
static smp_status add_hosts(command *c, const smp__elastic_job *job)
{
    for (int from = 0, to; from < job->devices; from = to) {
        const int host = job->slots.slot[job->picked[from]].host;
        for (to = from; to < job->devices && job->slots.slot[job->picked[to]].host == host;)
            to++;
        if (from > 0)
            SMP_TRY(add(c, ":"));
        SMP_TRY(add_host(c, job, from, to));
    }
    return SMP_OK;
}

static smp_status start(smp__elastic_job *job)
{
    int hosts = 0;
    for (int i = 0; i < job->hosts.n; i++)
        hosts += job->hosts.host[i].used;
    const int most = (job->options->n_passed + job->options->n_command + 64) * (hosts + 1);
    const bool alike = !is_several(job) || job->options->launcher;
    command c = {.most = most, .arena = smp_arena_create()};
    if (!c.arena)
        return SMP_ERR_NO_MEMORY;
    c.word = SMP_ARENA_NEW(c.arena, char *, (size_t)most + 1);
    smp_status status = c.word ? add_launcher(&c, job) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = alike ? add_ranks(&c, job, job->devices) : add_hosts(&c, job);
    if (status == SMP_OK && job->options->command)
        status = smp__program_tell(job);
    if (status == SMP_OK)
        status = show_gpus(job);
    if (status == SMP_OK)
        status = smp__launcher_start(c.word, &job->launcher);
    smp_arena_destroy(c.arena);
    return status;
}

/* What a job goes on with that another run has saved decides its bits, as its first plan does. */
static smp_status compare_bits(const smp__elastic_job *job)
{
    const smp_train_options *train = &job->options->run.train;
    const smp_plan *plan = job->plans.first;
    char receipt[SMP__RECEIPT_BYTES];
    bool found, later = false;
    const struct {
        const char *word;
        int64_t has;
    } decides[] = {{"microbatch-size", plan->microbatch_size},
                   {"gradient-blocks", plan->gradient_blocks}};
    if (!train->resume || train->resume_changed)
        return SMP_OK;
    if (job->options->keep_every > 0)
        SMP_TRY(smp__kept_is_later(job->keep, job->folder, &later));
    SMP_TRY(smp__checkpoint_find_receipt(later ? job->keep : job->folder, false, &found, receipt));
    for (size_t i = 0; i < sizeof decides / sizeof decides[0]; i++) {
        size_t length;
        const char *value = smp__receipt_value(receipt, decides[i].word, &length);
        if (value && strtoll(value, NULL, 10) != decides[i].has)
            return smp_fail(SMP_ERR_INPUT,
                            "the plan has %s %lld, the run that is resumed had %.*s: give --%s "
                            "%.*s, or --resume-changed for other bits",
                            decides[i].word, (long long)decides[i].has, (int)length, value,
                            decides[i].word, (int)length, value);
    }
    return SMP_OK;
}

static void say_start(smp__elastic_job *job)
{
    smp_text slots = {0};
    char name[SMP__SLOT_NAME];
    for (int i = 0; i < job->devices; i++)
        if (is_several(job))
            smp_text_append(&slots, "%s\"%s\"", i > 0 ? ", " : "",
                            smp__slot_name(&job->slots, job->picked[i], name));
        else
            smp_text_append(&slots, "%s%d", i > 0 ? ", " : "", job->picked[i]);
    smp__events_put(
        &job->events, "start",
        "\"incarnation\": %d, \"devices\": %d, \"slots\": [%s], \"plan\": \"%s\", "
        "\"predicted_us\": %.1f, \"global_batch\": %lld, \"moved_bytes\": %lld, \"move_s\": %.3f",
        job->record.incarnation, job->devices, slots.data ? slots.data : "",
        strrchr(job->plan, '/') + 1, job->moves.step_us,
        (long long)(job->plans.first->microbatch_size * smp_plan_microbatches(job->plans.first)),
        (long long)job->moves.bytes, job->moves.s);
    smp_text_free(&slots);
}

/* The incarnation's own copy of its plan. */
static smp_status name_plan(smp__elastic_job *job, const char *from)
{
    if (snprintf(job->plan, sizeof job->plan, "%s/plan-%d.yaml", job->folder,
                 job->record.incarnation) >= (int)sizeof job->plan)
        return smp_fail(SMP_ERR_INPUT, "%s: the name is too long", job->folder);
    if (copy_plan(from, job->plan) != SMP_OK) { /* a full disk: it is there under another name */
        smp__events_say("%s", smp_last_error());
        snprintf(job->plan, sizeof job->plan, "%s", from);
    }
    return SMP_OK;
}

smp_status smp__elastic_start(smp__elastic_job *job, int number)
{
    const int devices = smp__plans_devices(&job->plans, number);
    char from[PATH_BYTES];
    if (job->record.incarnation == 0)
        SMP_TRY(compare_bits(job));
    SMP_TRY(smp__elastic_place(job, number, from, sizeof from));
    job->number = number;
    job->devices = devices;
    job->record.incarnation++;
    SMP_TRY(name_plan(job, from));
    if (is_several(job) && job->options->keep_every > 0)
        SMP_TRY(smp__plans_use(&job->plans, job->plan));
    smp__slow_begin(job, number);
    for (int i = 0; i < job->hosts.n; i++)
        job->hosts.host[i].used = false;
    for (int i = 0; i < devices; i++)
        job->hosts.host[job->slots.slot[job->picked[i]].host].used = true;
    SMP_TRY(smp__hosts_begin(&job->hosts, job->record.incarnation, devices));
    job->lost_host = -1;
    job->life = SMP__LIFE_START;
    return SMP_OK;
}

/* A new job goes on with what it finds only if that is asked for: on this host supervisor.c has
 * looked, what others have is known now. */
static smp_status check_hosts(smp__elastic_job *job)
{
    if (job->options->keep_every == 0 || job->record.incarnation > 1 ||
        job->options->run.train.resume || smp__checkpoint_exists(job->folder) ||
        !smp__hosts_have_state(&job->hosts))
        return SMP_OK;
    job->record.incarnation = 0; /* none was begun: hosts keep what they have, nothing is noted */
    return smp_fail(SMP_ERR_INPUT,
                    "%s: on another host it holds the state of a run that was not ended: continue "
                    "it with --resume=auto, remove it, or choose another folder by --keep-in",
                    job->keep);
}

smp_status smp__elastic_launch(smp__elastic_job *job)
{
    SMP_TRY(check_hosts(job));
    SMP_TRY(smp__rows_begin(&job->rows));
    job->started_s = smp_clock_s();
    job->loaded_s = job->first_mark_s = job->mark_s = 0.0;
    job->left_s = 0.0;
    job->first_mark = job->n_marks = 0;
    job->resumed = job->reshapes = job->killed = job->told_idle = false;
    job->stalled = -1;
    SMP_TRY(start(job));
    job->moves.launched = true;
    job->life = SMP__LIFE_RUN;
    say_start(job);
    return SMP_OK;
}
