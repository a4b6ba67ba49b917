// second.c - a second process of the same program, which takes orders on its standard input and answers on its standard output.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

// Our environment with the settings in front, where they are found first.
static char **with_settings(char *const settings[])
{
	size_t first = 0, rest = 0;
	while (settings && settings[first])
		first++;
	while (environ[rest])
		rest++;
	char **all = calloc(first + rest + 1, sizeof *all);
	if (!all)
		give_up("no memory");
	for (size_t i = 0; i < first; i++)
		all[i] = settings[i];
	memcpy(all + first, environ, rest * sizeof *all);
	return all;
}

void second_start(struct second *s, char *const settings[])
{
	int in[2], out[2];
	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
		give_up("no pipe: %s", strerror(errno));
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in[0], 0);
	posix_spawn_file_actions_adddup2(&actions, out[1], 1);
	char *arguments[] = {(char *)probe.name, "--neighbour", plan.quick ? "--quick" : NULL, NULL};
	char **environment = with_settings(settings);
	int failed = posix_spawn(&s->pid, "/proc/self/exe", &actions, NULL, arguments, environment);
	if (failed)
		give_up("no second process: %s", strerror(failed));
	free(environment);
	posix_spawn_file_actions_destroy(&actions);
	close(in[0]);
	close(out[1]);
	s->orders = fdopen(in[1], "w");
	s->answers = fdopen(out[0], "r");
}

void second_order(struct second *s, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vfprintf(s->orders, format, list);
	va_end(list);
	fputc('\n', s->orders);
	fflush(s->orders);
}

const char *second_answer(struct second *s)
{
	static char line[256];
	if (!fgets(line, sizeof line, s->answers))
		give_up("the second process has ended");
	line[strcspn(line, "\n")] = 0;
	return line;
}
