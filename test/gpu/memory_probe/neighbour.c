// neighbour.c - a second process that has a beat, as a latency-critical program beside the one that moves memory. It reads
// "begin KIND" and "end" on its standard input; "begin" is answered by a line when the beat goes, "end" by a line for each series.
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>

#include "probe.h"

static FILE *orders, *answers;
static const char *kind_of;

int neighbour_main(void)
{
	static struct beat beat;
	char line[64], kind[16];
	driver_begin();
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "begin %15s", kind) == 1) {
			beat_start(&beat, kind);
			printf("begun\n");
		} else {
			beat_stop(&beat);
			for (int i = 0; series_name(kind, i); i++) {
				struct summary sum = sum_up(&beat.series[i]);
				printf("%zu %f %f %f\n", sum.count, sum.p50, sum.p99, sum.max);
			}
		}
		fflush(stdout);
	}
	return 0;
}

void neighbour_start(void)
{
	int in[2], out[2];
	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
		give_up("no pipe: %s", strerror(errno));
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in[0], 0);
	posix_spawn_file_actions_adddup2(&actions, out[1], 1);
	char *arguments[] = {"memory_probe", "--neighbour", plan.quick ? "--quick" : NULL, NULL};
	pid_t pid;
	int failed = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environ);
	if (failed)
		give_up("no second process: %s", strerror(failed));
	posix_spawn_file_actions_destroy(&actions);
	close(in[0]);
	close(out[1]);
	orders = fdopen(in[1], "w");
	answers = fdopen(out[0], "r");
}

static void answer(char *line, int bytes)
{
	if (!fgets(line, bytes, answers))
		give_up("the second process has ended");
}

void neighbour_begin(const char *kind)
{
	char line[128];
	kind_of = kind;
	fprintf(orders, "begin %s\n", kind);
	fflush(orders);
	answer(line, sizeof line);
}

void neighbour_end(const char *format, ...)
{
	char line[128], beside[192];
	va_list list;
	va_start(list, format);
	vsnprintf(beside, sizeof beside, format, list);
	va_end(list);
	fprintf(orders, "end\n");
	fflush(orders);
	struct summary sums[SERIES];
	for (int i = 0; series_name(kind_of, i); i++) {
		struct summary *s = &sums[i];
		answer(line, sizeof line);
		if (sscanf(line, "%zu %lf %lf %lf", &s->count, &s->p50, &s->p99, &s->max) != 4)
			give_up("the second process says %s", line);
	}
	beat_figures("second process", kind_of, sums, beside);
}
