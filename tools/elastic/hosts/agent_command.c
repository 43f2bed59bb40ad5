/* Commands of agents; see the header. */
#include "tools/elastic/hosts/agent_command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/elastic/hosts/agent.h"

enum { MOST_WORDS = 64, PATH_BYTES = 4096 };

static const char by_ssh[] =
    "ssh -o BatchMode=yes -o ServerAliveInterval=1 -o ServerAliveCountMax=4 {host}";
static const char by_srun[] =
    "srun --no-kill --overlap --nodes=1 --ntasks=1 --nodelist={host} /bin/sh -c";

smp_status smp__agent_template(const char *asked, char *out, size_t size)
{
    const char *slurm = getenv("SLURM_JOB_NODELIST");
    const char *text = asked ? asked : slurm && *slurm ? by_srun : by_ssh;
    int words = 0;
    for (const char *at = text; *at; at++)
        words += *at != ' ' && (at == text || at[-1] == ' ');
    if (!strstr(text, "{host}"))
        return smp_fail(SMP_ERR_INPUT, "--agent: got '%.80s', expected {host} among its words",
                        text);
    if (words > MOST_WORDS - 2 || strchr(text, '\n') ||
        snprintf(out, size, "%s", text) >= (int)size)
        return smp_fail(SMP_ERR_INPUT, "--agent: expected at most %d words, %zu bytes, in one line",
                        MOST_WORDS - 2, size - 1);
    return SMP_OK;
}

/* As one word of a shell. */
static void append_quoted(smp_text *text, const char *word)
{
    smp_text_append(text, "'");
    for (; *word; word++)
        if (*word == '\'')
            smp_text_append(text, "'\\''");
        else
            smp_text_append_bytes(text, word, 1);
    smp_text_append(text, "'");
}

static void append_replaced(smp_text *text, const char *word, const char *host)
{
    for (const char *at; (at = strstr(word, "{host}")) != NULL; word = at + strlen("{host}")) {
        smp_text_append_bytes(text, word, (size_t)(at - word));
        smp_text_append(text, "%s", host);
    }
    smp_text_append(text, "%s", word);
}

/* The words of the template, each ended by a zero; their number. */
static int append_words(smp_text *text, const char *agent, const char *host)
{
    char words[1024], *rest = NULL;
    int n = 0;
    snprintf(words, sizeof words, "%s", agent);
    for (const char *word = strtok_r(words, " ", &rest); word;
         word = strtok_r(NULL, " ", &rest), n++) {
        append_replaced(text, word, host);
        smp_text_append_bytes(text, "", 1);
    }
    return n;
}

/* cd FOLDER && exec PROGRAM ... */
static smp_status append_line(smp_text *text, char *const *argv)
{
    char folder[PATH_BYTES];
    if (!getcwd(folder, sizeof folder))
        return smp_fail(SMP_ERR_FAILED, "the working directory: %s", strerror(errno));
    smp_text_append(text, "cd ");
    append_quoted(text, folder);
    smp_text_append(text, " && exec");
    for (; *argv; argv++) {
        smp_text_append(text, " ");
        append_quoted(text, *argv);
    }
    smp_text_append_bytes(text, "", 1);
    return SMP_OK;
}

static smp_status start_there(const char *agent, const char *host, char *const *argv,
                              smp__agent_link *out)
{
    smp_text text = {0};
    char *words[MOST_WORDS];
    const int n = append_words(&text, agent, host);
    smp_status status = append_line(&text, argv);
    if (status == SMP_OK && (text.failed || n + 2 > MOST_WORDS))
        status = smp_fail_memory(text.capacity);
    char *at = text.data;
    for (int i = 0; i <= n && status == SMP_OK; i++, at += strlen(at) + 1)
        words[i] = at;
    words[n < MOST_WORDS - 1 ? n + 1 : MOST_WORDS - 1] = NULL;
    if (status == SMP_OK)
        status = smp__agent_link_open(words, false, out);
    smp_text_free(&text);
    return status;
}

smp_status smp__agent_start(const smp__hosts_options *o, const char *agent, const char *host,
                            bool local, smp__agent_link *out)
{
    char limit[32], keep_for[32];
    /* Later than the supervisor finds the host lost, so that a slow answer ends no rank. */
    const double limit_s = local || o->beat_limit_s <= 0.0 ? 0.0 : 2.0 * o->beat_limit_s + 2.0;
    snprintf(limit, sizeof limit, "%g", limit_s);
    snprintf(keep_for, sizeof keep_for, "%g", o->keep_for_s);
    const char *const words[] = {o->program, SMP__AGENT_WORD,         o->keep, limit,
                                 keep_for,   o->gpus ? "gpu" : "cpu", NULL};
    char *argv[sizeof words / sizeof words[0]];
    memcpy(argv, words, sizeof argv);
    *out = (smp__agent_link)SMP__NO_LINK;
    return local ? smp__agent_link_open(argv, true, out) : start_there(agent, host, argv, out);
}

smp_status smp__agent_script(const char *agent, const char *path)
{
    char words[1024], *rest = NULL;
    smp_text text = {0};
    snprintf(words, sizeof words, "%s", agent);
    smp_text_append(&text, "host=$1\nshift\nexec");
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        smp_text_append(&text, " ");
        for (char *at; (at = strstr(word, "{host}")) != NULL; word = at + strlen("{host}")) {
            *at = '\0';
            append_quoted(&text, word);
            smp_text_append(&text, "\"$host\"");
        }
        append_quoted(&text, word);
    }
    smp_text_append(&text, " \"$*\"\n");
    const smp_status status =
        text.failed ? smp_fail_memory(text.capacity) : smp_file_write(path, text.data, text.length);
    smp_text_free(&text);
    return status;
}
