/* Starting ranks; see the header. */
#include "tools/elastic/start_ranks.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exec/checkpoint/kept_folder.h"
#include "graph/base/clock.h"

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

/* CUDA shows ranks the GPUs of their slots alone, which they take in turn. */
static smp_status show_gpus(const smp__elastic_job *job)
{
    const char *device = job->options->run.train.job.runtime.device;
    smp_text list = {0};
    if (!device || strcmp(device, "cpu") == 0)
        return SMP_OK;
    for (int i = 0; i < job->devices; i++) {
        smp_text_append(&list, "%s", i > 0 ? "," : "");
        add_entry(&list, job->gpus, job->picked[i]);
    }
    const bool failed = list.failed || setenv("CUDA_VISIBLE_DEVICES", list.data, 1) != 0;
    smp_text_free(&list);
    return failed ? smp_fail_memory(1) : SMP_OK;
}

static smp_status mapped_folder(const smp__elastic_job *job, char path[PATH_BYTES])
{
    return snprintf(path, PATH_BYTES, "%s-mpi", job->keep) < PATH_BYTES
               ? SMP_OK
               : smp_fail(SMP_ERR_INPUT, "%s: the name is too long", job->keep);
}

void smp__elastic_sweep(const smp__elastic_job *job)
{
    char path[PATH_BYTES];
    DIR *all = mapped_folder(job, path) == SMP_OK ? opendir(path) : NULL;
    if (!all)
        return;
    for (const struct dirent *entry; (entry = readdir(all));)
        unlinkat(dirfd(all), entry->d_name, 0); /* "." and ".." stay */
    closedir(all);
    rmdir(path);
}

/* What ranks of a machine share lies in a folder of the job's own: an mpirun that is killed leaves
 * it behind. */
static smp_status name_mapped(const smp__elastic_job *job)
{
    char path[PATH_BYTES];
    struct stat info;
    SMP_TRY(mapped_folder(job, path));
    smp__elastic_sweep(job);
    if (mkdir(path, 0700) != 0 &&
        (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()))
        return smp_fail(SMP_ERR_INPUT, "%s: cannot be made a folder of this user's", path);
    return setenv("OMPI_MCA_btl_vader_backing_directory", path, 0) == 0 ? SMP_OK
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
    char number[16], *rest = NULL;
    char *words =
        smp_arena_strdup(c->arena, job->options->launcher ? job->options->launcher : "mpirun");
    if (!words)
        return SMP_ERR_NO_MEMORY;
    if (!job->options->launcher) {
        SMP_TRY(smp__launcher_prepare(job->devices));
        SMP_TRY(name_mapped(job));
    }
    for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        SMP_TRY(add(c, w));
    snprintf(number, sizeof number, "%d", job->devices);
    SMP_TRY(add(c, "-n"));
    return add(c, number);
}

static smp_status add_options(command *c, const smp__elastic_job *job)
{
    const smp__elastic_options *o = job->options;
    const char *option = o->passed.data;
    char every[24];
    const bool saved = smp__checkpoint_exists(job->folder) || smp__checkpoint_exists(job->keep);
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

static smp_status start(smp__elastic_job *job, const char *plan)
{
    const int most = job->options->n_passed + 64;
    command c = {.most = most, .arena = smp_arena_create()};
    if (!c.arena)
        return SMP_ERR_NO_MEMORY;
    c.word = SMP_ARENA_NEW(c.arena, char *, (size_t)most + 1);
    smp_status status = c.word ? add_launcher(&c, job) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = add(&c, job->program);
    if (status == SMP_OK)
        status = add(&c, plan);
    if (status == SMP_OK)
        status = add_options(&c, job);
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

static void say_start(smp__elastic_job *job, const char *plan)
{
    smp_text slots = {0};
    for (int i = 0; i < job->devices; i++)
        smp_text_append(&slots, "%s%d", i > 0 ? ", " : "", job->picked[i]);
    smp__events_put(&job->events, "start",
                    "\"incarnation\": %d, \"devices\": %d, \"slots\": [%s], \"plan\": \"%s\", "
                    "\"predicted_us\": %.1f, \"global_batch\": %lld",
                    job->record.incarnation, job->devices, slots.data ? slots.data : "",
                    strrchr(plan, '/') + 1, job->plans.of[job->devices].step_us,
                    (long long)job->plans.first->microbatch_size * job->plans.first->microbatches *
                        job->plans.first->ddp);
    smp_text_free(&slots);
}

smp_status smp__elastic_start(smp__elastic_job *job, int devices)
{
    char from[PATH_BYTES], plan[PATH_BYTES];
    if (job->record.incarnation == 0)
        SMP_TRY(compare_bits(job));
    job->devices = devices;
    smp__slots_pick(&job->slots, devices, job->picked);
    SMP_TRY(smp__ranks_end_orphans(job->keep));
    job->record.incarnation++;
    SMP_TRY(smp__plans_path(&job->plans, devices, from, sizeof from));
    if (snprintf(plan, sizeof plan, "%s/plan-%d.yaml", job->folder, job->record.incarnation) >=
        (int)sizeof plan)
        return smp_fail(SMP_ERR_INPUT, "%s: the name is too long", job->folder);
    if (copy_plan(from, plan) != SMP_OK) { /* a full disk: the plan is there under another name */
        smp__events_say("%s", smp_last_error());
        snprintf(plan, sizeof plan, "%s", from);
    }
    smp__ranks_close(&job->ranks);
    SMP_TRY(smp__ranks_open(job->keep, devices, &job->ranks));
    SMP_TRY(smp__rows_begin(&job->rows));
    job->started_s = smp_clock_s();
    job->loaded_s = job->first_mark_s = job->mark_s = 0.0;
    job->left_s = 0.0;
    job->first_mark = job->n_marks = 0;
    job->resumed = job->reshapes = job->killed = job->told_idle = false;
    job->stalled = -1;
    SMP_TRY(start(job, plan));
    job->life = SMP__LIFE_RUN;
    say_start(job, plan);
    return SMP_OK;
}
